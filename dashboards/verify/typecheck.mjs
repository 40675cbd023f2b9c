// Type-checks dashboards against the types that Grafana publishes (@grafana/schema); unknown properties fail.
// usage: node typecheck.mjs DASHBOARD.json...
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

const panelTypes = {
  timeseries: 'TimeSeries', stat: 'Stat', heatmap: 'Heatmap', bargauge: 'BarGauge', table: 'Table',
};
const raw = '@grafana/schema/dist/esm/raw';
const imports = Object.entries(panelTypes).map(([id, name]) =>
  `import type * as ${id} from '${raw}/composable/${id}/panelcfg/x/${name}PanelCfg_types.gen';`);

const source = `
import type {
  AnnotationQuery, Dashboard, FieldConfig, Panel, RowPanel, VariableModel,
} from '${raw}/dashboard/x/Dashboard_types.gen';
${imports.join('\n')}

// A JSON file has the values of an enum, not its members.
type Json<T> = T extends string ? \`\${T}\`
  : T extends number | boolean | null | undefined ? T
  : T extends readonly (infer U)[] ? Json<U>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
type Source = { type: 'prometheus', uid: '\${datasource}' };
type Target = {
  datasource: Source, expr: string, refId: string, legendFormat: string, editorMode: 'code' | 'builder',
  range?: boolean, instant?: boolean, format?: 'time_series' | 'table' | 'heatmap',
};
type Of<Id extends string, Options, Custom> =
  Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource'> & {
    id: number, type: Id, title: string, description: string, datasource: Source, targets: Target[],
    options: Partial<Options>,
    fieldConfig: {
      defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> },
      overrides: NonNullable<Panel['fieldConfig']>['overrides'],
    },
  };
type AnyPanel = (Omit<RowPanel, 'panels'> & { panels: [] })
  | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Of<'stat', stat.Options, {}>
  | Of<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Of<'bargauge', bargauge.Options, {}>
  | Of<'table', table.Options, table.FieldConfig>;
type Strict = Omit<Dashboard, 'panels' | 'annotations' | 'templating'> & {
  panels: AnyPanel[],
  annotations: { list: (AnnotationQuery & {
    expr?: string, step?: string, titleFormat?: string, textFormat?: string, tagKeys?: string })[] },
  templating: { list: (VariableModel & { definition?: string })[] },
};
`;
const boards = process.argv.slice(2).map((file, i) => {
  const board = JSON.parse(fs.readFileSync(file));
  delete board.__requires; // an export's own field, not part of the model
  return `// ${path.basename(file)}\nconst board${i} = ${JSON.stringify(board, null, 1)} satisfies Json<Strict>;\n`;
});
// The compiler finds @grafana/schema only from a file beside node_modules.
const here = import.meta.dirname;
const generated = path.join(here, `node_modules/.dashboards-${process.pid}.ts`);
fs.writeFileSync(generated, `${source}${boards.join('')}export {};\n`);
const { status, stdout } = spawnSync(path.join(here, 'node_modules/.bin/tsc'), [
  '--ignoreConfig', '--noEmit', '--strict', '--skipLibCheck', '--target', 'es2022', '--module', 'nodenext',
  '--moduleResolution', 'nodenext', '--types', '', generated,
], { encoding: 'utf8' });
fs.rmSync(generated);
console.log(stdout.slice(0, 4000) + (status === 0 ? 'types: ok' : 'types: failed'));
process.exit(status);
