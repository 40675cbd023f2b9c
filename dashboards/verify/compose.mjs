// Checks the compose stack as far as that goes without Docker: what it mounts, builds, scrapes and provisions fits
// together. usage: node compose.mjs FOLDER SCRATCH_FOLDER
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { parse } from 'yaml';

const [folder, scratch] = process.argv.slice(2);
const problems = [];
const expect = (holds, text) => holds || problems.push(text);
const read = (...parts) => fs.readFileSync(path.join(folder, ...parts), 'utf8');
const yaml = (...parts) => parse(read(...parts), { strict: true, merge: true });

const { services, volumes } = yaml('compose.yml');
const names = Object.keys(services);
const mounts = {}; // service -> { path in the container: path here }
for (const [name, service] of Object.entries(services)) {
  expect(service.image, `${name} has no image name`);
  expect(/:[\w.-]*\d/.test(service.image) || service.build, `${name}: ${service.image} is not pinned`);
  for (const needed of Array.isArray(service.depends_on) ? service.depends_on : Object.keys(service.depends_on ?? {})) {
    expect(names.includes(needed), `${name} depends on ${needed}, which is no service`);
  }
  for (const [needed, { condition }] of Object.entries(service.depends_on ?? {})) {
    if (condition === 'service_healthy') expect(services[needed].healthcheck, `${needed} has no health check`);
  }
  for (const port of service.ports ?? []) expect(port.startsWith('127.0.0.1:'), `${name} is open to the network`);
  mounts[name] = {};
  for (const mount of service.volumes ?? []) {
    const [source, target] = mount.split(':');
    if (source.startsWith('.')) {
      const file = path.resolve(folder, source);
      expect(fs.existsSync(file), `${name} mounts ${source}, which does not exist`);
      mounts[name][target] = file;
    } else {
      expect(source in volumes, `${name} mounts the volume ${source}, which is not declared`);
    }
  }
}

// The build: what it copies exists and is not ignored; the environment is what the program reads.
const orders = services['orders-1'];
const context = path.resolve(folder, orders.build.context);
const dockerfile = fs.readFileSync(path.join(context, orders.build.dockerfile), 'utf8');
const allowed = read('Dockerfile.dockerignore').split('\n').filter((l) => l.startsWith('!')).map((l) => l.slice(1));
for (const [, sources] of dockerfile.matchAll(/^COPY (?!--from)(.+) \S+$/gm)) {
  for (const source of sources.split(' ')) {
    expect(fs.existsSync(path.join(context, source)), `Dockerfile copies ${source}, which does not exist`);
    expect(allowed.includes(source), `Dockerfile copies ${source}, which is ignored`);
  }
}
const options = fs.readFileSync(path.join(context, 'examples/orders/options.rs'), 'utf8');
const variables = [...options.matchAll(/env = "(\w+)"/g)].map((m) => m[1]);
for (const variable of Object.keys(orders.environment)) {
  expect(variable === 'RUST_LOG' || variables.includes(variable), `orders does not read ${variable}`);
}
const port = orders.environment.LISTEN.split(':')[1];

// Prometheus: its own check, on the files as they are mounted; it scrapes both instances.
const config = yaml('prometheus.yml');
const targets = config.scrape_configs.flatMap((job) => job.static_configs.flatMap((c) => c.targets)).sort();
const instances = names.filter((name) => name.startsWith('orders')).map((name) => `${name}:${port}`);
expect(`${targets}` === `${instances}`, `Prometheus scrapes ${targets}, not ${instances}`);
expect(`${services.load.command.slice(2)}` === `${instances}`, 'the load goes elsewhere');
const etc = path.join(scratch, 'etc-prometheus');
for (const [target, file] of Object.entries(mounts.prometheus)) {
  const copy = path.join(etc, path.relative('/etc/prometheus', target));
  fs.mkdirSync(path.dirname(copy), { recursive: true });
  fs.copyFileSync(file, copy);
}
const check = spawnSync('promtool', ['check', 'config', path.join(etc, 'prometheus.yml')], { encoding: 'utf8' });
expect(check.status === 0 && (check.stdout.match(/SUCCESS: \d+ rules/g) ?? []).length === 2, check.stdout + check.stderr);

// Grafana: the data source is that Prometheus, and the provider's folder holds both dashboards.
const { apiVersion, datasources } = yaml('grafana/datasources/prometheus.yml');
expect(apiVersion === 1 && datasources.length === 1, 'data source file');
expect(datasources[0].type === 'prometheus' && datasources[0].isDefault, 'data source type');
expect(datasources[0].url === 'http://prometheus:9090', 'data source address');
expect(datasources[0].jsonData.timeInterval === config.global.scrape_interval, 'scrape interval of the data source');
const provision = yaml('grafana/dashboards/tower-lock.yml');
const { type, options: { path: home } } = provision.providers[0];
const boards = Object.keys(mounts.grafana).filter((target) => path.dirname(target) === home).map((t) => path.basename(t));
expect(provision.apiVersion === 1 && type === 'file', 'dashboard provider');
expect(`${boards.sort()}` === 'tower-lock-detail.json,tower-lock-overview.json', `the provider finds ${boards}`);
expect(`${services.grafana.environment.GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH}` in mounts.grafana, 'home dashboard');

expect(spawnSync('sh', ['-n', path.join(folder, 'load.sh')]).status === 0, 'load.sh is no shell script');
console.log(problems.join('\n'));
console.log(`${names.length} services, ${problems.length} problems`);
process.exit(problems.length ? 1 : 0);
