// Draws a dashboard from the answers of its queries, with Grafana's own components.
// The heatmap and the table are drawn by hand: their panels are not part of @grafana/ui.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, FieldConfigOptionsRegistry, FieldType, getDisplayProcessor,
  getFieldDisplayValues, identityOverrideProcessor, standardFieldConfigEditorRegistry, ThemeContext,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, PortalContainer, TimeSeries } from '@grafana/ui';

const WIDTH = 1600;
const COLUMN = WIDTH / 24;
const ROW = 36;
const HEADER = 52;
const theme = createTheme({ colors: { mode: 'dark' } });

function option(id, extra = {}) {
  return {
    id, path: id, name: id, editor: () => null, override: () => null, process: identityOverrideProcessor,
    shouldApply: () => true, settings: {}, ...extra,
  };
}
const standard = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings', 'links']
  .map((id) => option(id));
const custom = ['lineStyle', 'lineWidth', 'fillOpacity', 'drawStyle', 'stacking', 'thresholdsStyle', 'lineInterpolation', 'hideFrom']
  .map((id) => option(id, { id: `custom.${id}`, path: id, isCustom: true }));
standardFieldConfigEditorRegistry.setInit(() => standard);
const registry = new FieldConfigOptionsRegistry(() => [...standard, ...custom]);

const legend = (format, labels) => format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '');
const number = (text) => {
  const value = parseFloat(text.replace('Inf', 'Infinity'));
  return Number.isNaN(value) ? null : value;
};

function framesOf(panel, answers, data) {
  const frames = answers.flatMap((answer) => answer.result.map((series) => {
    const samples = new Map((series.values ?? [series.value]).map(([t, v]) => [t, number(v)]));
    const { __name__, ...labels } = series.metric;
    const name = legend(answer.legend, labels) || panel.title;
    // Gaps stay gaps: every step has a place.
    const times = series.values ? data.times : [...samples.keys()];
    return {
      refId: answer.refId, name, length: times.length,
      fields: [
        { name: 'Time', type: FieldType.time, config: {}, values: times.map((t) => t * 1000) },
        { name, type: FieldType.number, labels, config: { displayNameFromDS: name },
          values: times.map((t) => samples.get(t) ?? null) },
      ],
    };
  }));
  return applyFieldOverrides({
    data: frames, fieldConfig: panel.fieldConfig, fieldConfigRegistry: registry, replaceVariables: (s) => s, theme,
    timeZone: 'utc',
  });
}

// Cumulative `le` series become cells.
function Heatmap({ frames, width, height, unit }) {
  const bound = (frame) => parseFloat(frame.fields[1].labels.le.replace('+Inf', 'Infinity'));
  const rows = [...frames].sort((a, b) => bound(a) - bound(b));
  const at = (row, i) => rows[row]?.fields[1].values[i] ?? 0;
  const steps = rows[0].length;
  const cells = rows.map((_, row) => Array.from({ length: steps }, (_, i) => Math.max(0, at(row, i) - at(row - 1, i))));
  const most = Math.max(...cells.flat(), 1e-9);
  const [left, bottom] = [48, 4];
  const [w, h] = [(width - left) / steps, (height - bottom) / rows.length];
  const display = getDisplayProcessor({ field: { type: FieldType.number, config: { unit } }, theme });
  const text = (value) => { const d = display(value); return value === Infinity ? '+Inf' : d.text + (d.suffix ?? ''); };
  return <svg width={width} height={height}>
    {cells.flatMap((row, r) => row.map((value, i) => value > 0 && <rect key={`${r}-${i}`} x={left + i * w}
      y={height - bottom - (r + 1) * h} width={w + 0.3} height={h - 1} fill={`rgba(255,152,48,${Math.sqrt(value / most)})`} />))}
    {rows.map((frame, r) => <text key={r} x={left - 4} y={height - bottom - (r + 0.5) * h + 3} fill="#ccccdc" fontSize="9"
      textAnchor="end">{text(bound(frame))}</text>)}
  </svg>;
}

function Values({ panel, frames, width, height, range }) {
  const values = getFieldDisplayValues({
    data: frames, fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
    replaceVariables: (s) => s, theme, sparkline: panel.options.graphMode === 'area', timeZone: 'utc',
  });
  if (panel.type === 'stat') {
    const [{ display, sparkline }] = values;
    return <BigValue value={{ ...display, title: '' }} width={width} height={height} theme={theme} textMode="value"
      sparkline={sparkline && { ...sparkline, timeRange: range }} colorMode={panel.options.colorMode}
      graphMode={panel.options.graphMode} justifyMode="auto" />;
  }
  return values.map((value, i) => <div key={i} style={{ marginBottom: 6 }}>
    <BarGauge value={value.display} field={value.field} width={width} height={Math.min(34, height / values.length - 6)}
      display={value.view?.getFieldDisplayProcessor?.(value.colIndex)} theme={theme} orientation="horizontal"
      displayMode={panel.options.displayMode} showUnfilled text={{ titleSize: 14, valueSize: 14 }}
      alignmentFactors={{ title: 'mmmmmmmmmmmm', text: '100.0%' }} />
  </div>);
}

function Table({ panel, frames }) {
  const { renameByName } = panel.transformations[0].options;
  return <table style={{ width: '100%', fontSize: 13, color: theme.colors.text.primary, textAlign: 'left' }}>
    <thead><tr>{Object.values(renameByName).map((name) => <th key={name}>{name}</th>)}</tr></thead>
    <tbody>{frames.map((frame, i) => <tr key={i}>
      {Object.keys(renameByName).map((label) => <td key={label}>{frame.fields[1].labels[label]}</td>)}
    </tr>)}</tbody>
  </table>;
}

function Body({ panel, data, width, height, range }) {
  const answers = data.frames.filter((f) => f.dashboard === window.INPUT.dashboard.uid && f.panel === panel.id);
  const frames = framesOf(panel, answers, data);
  if (!frames.length) return <div style={{ padding: 20, color: theme.colors.text.secondary }}>No data</div>;
  const size = { width, height };
  switch (panel.type) {
    case 'timeseries':
      return <TimeSeries frames={frames} {...size} timeRange={range} timeZone="utc" legend={panel.options.legend}
        structureRev={1} />;
    case 'heatmap': return <Heatmap frames={frames} {...size} unit={panel.options.yAxis.unit} />;
    case 'table': return <Table panel={panel} frames={frames} />;
    default: return <Values panel={panel} frames={frames} {...size} range={range} />;
  }
}

class Guard extends React.Component {
  state = {};

  static getDerivedStateFromError(error) { return { error }; }

  render() {
    return this.state.error
      ? <pre style={{ color: 'red' }}>{String(this.state.error.stack).slice(0, 400)}</pre> : this.props.children;
  }
}

function Dashboard() {
  const { dashboard, data } = window.INPUT;
  data.times = [];
  for (let t = data.start; t <= data.end + 1e-6; t += data.step) data.times.push(Math.round(t * 1000) / 1000);
  const range = { from: dateTime(data.start * 1000), to: dateTime(data.end * 1000), raw: { from: 'now-1h', to: 'now' } };
  return <ThemeContext.Provider value={theme}>
    <GlobalStyles /><PortalContainer />
    <div style={{ position: 'relative', width: WIDTH, height: window.innerHeight, fontFamily: 'Inter, sans-serif',
      background: theme.colors.background.canvas }}>
      <div style={{ padding: 14, fontSize: 20, color: theme.colors.text.primary }}>{dashboard.title}</div>
      {dashboard.panels.map((panel) => {
        const { x, y, w, h } = panel.gridPos;
        const box = { position: 'absolute', left: x * COLUMN + 4, top: HEADER + y * ROW, width: w * COLUMN - 8, height: h * ROW - 8 };
        return panel.type === 'row'
          ? <div key={panel.id} style={{ ...box, color: theme.colors.text.primary, fontWeight: 500, padding: 4 }}>{panel.title}</div>
          : <div key={panel.id} style={box}>
            <PanelChrome width={box.width} height={box.height} title={panel.title}>
              {(width, height) => <Guard><Body panel={panel} data={data} width={width} height={height} range={range} /></Guard>}
            </PanelChrome>
          </div>;
      })}
    </div>
  </ThemeContext.Provider>;
}

createRoot(document.getElementById('root')).render(<Dashboard />);
