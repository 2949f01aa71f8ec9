import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parser } from '@prometheus-io/lezer-promql';
import { beforeAll, describe, expect, it } from 'vitest';
import { Registry } from 'prom-client';
import { parse } from 'yaml';
import { DIRECTIONS } from '../../src/agent/directions/direction.ts';
import { AgentMetrics } from '../../src/agent/metrics.ts';
import { silentLogger, systemClock } from '../../src/base/index.ts';
import {
  BackupMetrics,
  DeletionMetrics,
  OperationMetrics,
  RestoreMetrics,
  Server,
} from '../../src/server/index.ts';
import { registerLocationMetrics } from '../../src/server/locations/location-controller.ts';
import { RepositoryMetrics } from '../../src/server/repositories/repository-metrics.ts';
import { registerScheduleMetrics } from '../../src/server/schedules/schedule-controller.ts';
import { registerSyncMetrics } from '../../src/server/sync/sync-controller.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const read = (path: string): string => readFileSync(join(ROOT, path), 'utf8');

interface Panel {
  readonly id: number;
  readonly title: string;
  readonly targets: readonly { readonly expr: string; readonly legendFormat: string }[];
}
interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly annotations: Readonly<Record<string, string>>;
}

const DASHBOARDS = ['dashboard.json', 'server-dashboard.json'].map(
  (file) => (JSON.parse(read(`manifests/monitoring/${file}`)) as { panels: Panel[] }).panels,
);
const PANELS = DASHBOARDS.flat();
const rulesOf = (file: string): Rule[] =>
  (parse(read(`manifests/monitoring/${file}`)) as { spec: { groups: [{ rules: Rule[] }] } }).spec
    .groups[0].rules;
/** Where a longshore server runs, and nowhere else. */
const SERVER_RULES = rulesOf('server-alerts.yaml');
const RULES = [...rulesOf('alerts.yaml'), ...rulesOf('backup-alerts.yaml'), ...SERVER_RULES];
/** Rules over metrics of kube-state-metrics, not over our metrics. */
const VERIFY_RULES = rulesOf('verify-alerts.yaml');

/** Each query, and the text beside it that names labels of what comes out. */
const QUERIES = [
  ...PANELS.flatMap(({ title, targets }) =>
    targets.map(({ expr, legendFormat }) => [`panel ${title}`, expr, legendFormat] as const),
  ),
  ...RULES.map(
    ({ alert, expr, annotations }) =>
      [`alert ${alert}`, expr, Object.values(annotations).join(' ')] as const,
  ),
];

/** What Prometheus adds to each series that it reads. */
const OF_PROMETHEUS = ['instance', 'job'];
const PHASES = ['New', 'Accepted', 'Prepared', 'InProgress', 'Completed', 'Failed', 'Canceled'];
/** Phases of Backups that are not over. */
const BACKUP_PHASES = ['New', 'Queued', 'ReadyToStart', 'InProgress'];
const METRIC = /\b(?:longshore|podVolume|process|velero)_[A-Za-z_]+[A-Za-z]/g;

interface Definition {
  readonly name: string;
  readonly type: string;
  readonly labels: readonly string[];
  readonly buckets?: readonly number[];
}
const VELERO_METRICS = JSON.parse(
  read('test/golden/velero-metrics/metrics.json'),
) as readonly Definition[];
const definitions = new Map<string, Definition>();

/** Labels of each metric, by the names of series. */
const labels = new Map<string, readonly string[]>();
beforeAll(async () => {
  const metrics = new AgentMetrics('node');
  metrics.observe({
    phases: () => [],
    dataPaths: () => ({ used: 0, limit: 0 }),
    exposing: () => 0,
    memoryLimitBytes: undefined,
    silentSeconds: () => 0,
  });
  const server = new Registry();
  new RepositoryMetrics(server, {
    repositories: () => [],
    jobs: () => ({ running: 0, waiting: 0 }),
    isPasswordWellKnown: () => true,
  });
  registerLocationMetrics(server, () => []);
  registerScheduleMetrics(server, () => []);
  registerSyncMetrics(server, () => []);
  new BackupMetrics(server, { backups: () => [] });
  new DeletionMetrics(server);
  new RestoreMetrics(server, () => []);
  new OperationMetrics({ registry: server, clock: systemClock });
  new Server({
    client: undefined as never,
    logger: silentLogger,
    registry: server,
    namespace: 'velero',
    host: '',
    controllers: [],
  });
  const registry = Registry.merge([metrics.registry, server]);
  const types = new Map(
    (await registry.getMetricsAsJSON()).map(({ name, type }) => [name, String(type)]),
  );
  for (const metric of registry.getMetricsAsArray()) {
    const { name, labelNames } = metric as unknown as { name: string; labelNames: string[] };
    const { upperBounds } = metric as unknown as { upperBounds?: number[] };
    const type = types.get(name) ?? '';
    definitions.set(name, {
      name,
      type,
      labels: labelNames,
      ...(upperBounds && { buckets: upperBounds }),
    });
    const all = [...labelNames, ...OF_PROMETHEUS];
    if (types.get(name) === 'histogram') {
      labels.set(`${name}_bucket`, [...all, 'le']);
      for (const end of ['sum', 'count']) labels.set(`${name}_${end}`, all);
    } else labels.set(name, all);
  }
});

const wordsOf = (list: string | undefined): string[] =>
  (list ?? '').split(',').flatMap((word) => word.trim() || []);
const matchersOf = (expr: string): string[][] =>
  [...expr.matchAll(/([a-z_]+)(=~|!=|!~|=)"([^"]*)"/g)].map((match) => match.slice(1));

describe('monitoring', () => {
  it.each(QUERIES)('%s asks for series and labels that there are', (_, expr, text) => {
    const names = expr.match(METRIC) ?? [];
    expect(names.length).toBeGreaterThan(0);
    for (const name of names) expect([...labels.keys()]).toContain(name);
    const known = names.flatMap((name) => labels.get(name) ?? []);
    const groups = [...expr.matchAll(/\b(?:by|on|without|ignoring) \(([^)]*)\)/g)];
    const asked = groups.flatMap(([, list]) => wordsOf(list));
    for (const label of asked) expect(known).toContain(label);
    for (const [, name = '', inner] of expr.matchAll(/([A-Za-z_]+)\{([^}]*)\}/g)) {
      for (const [label, operator, value = ''] of matchersOf(inner ?? '')) {
        expect(labels.get(name)).toContain(label);
        const values = operator?.includes('~') === true ? value.split('|') : [value];
        const phases = name === 'longshore_backups' ? BACKUP_PHASES : ['', ...PHASES];
        const there = { direction: [...DIRECTIONS], phase: phases }[label ?? ''];
        expect(there).toEqual(expect.arrayContaining(values));
      }
    }
    // An aggregate keeps only its own labels.
    const left = asked.length > 0 ? asked : /^(sum|max|1 -)/.test(expr) ? [] : known;
    const shown = [...text.matchAll(/\{\{ ?(?:\$labels\.)?([A-Za-z_]+) ?\}\}/g)];
    for (const [, label] of shown) expect(left).toContain(label);
  });

  it.each([
    ...QUERIES.map(([what, expr]) => [what, expr] as const),
    ...VERIFY_RULES.map(({ alert, expr }) => [`alert ${alert}`, expr] as const),
  ])('%s can be read by Prometheus', (_, expr) => {
    const wrong: string[] = [];
    parser.parse(expr).iterate({
      enter: ({ type, from }) => {
        if (type.isError) wrong.push(`at ${from}: ${expr.slice(from)}`);
      },
    });
    expect(wrong).toEqual([]);
  });

  it('the grammar refuses what Prometheus refuses', () => {
    for (const expr of ['sum by (a (b)', 'rate(x[5q])', 'a > > b', 'increase(x{y="z}[1h])']) {
      let hasError = false;
      parser.parse(expr).iterate({ enter: ({ type }) => void (hasError ||= type.isError) });
      expect([expr, hasError]).toEqual([expr, true]);
    }
  });

  it('docs/alerts.md says of each alert what it means and what to do, and of no other', () => {
    const told = [...read('docs/alerts.md').matchAll(/^### (\w+)\n\n(.+?)(?=\n#|$(?![^]))/gms)];
    const names = told.map(([, name = '']) => name);
    expect(names.toSorted()).toEqual([...RULES, ...VERIFY_RULES].map(({ alert }) => alert).sort());
    for (const [, name, text = ''] of told) expect(text.length, name).toBeGreaterThan(60);
  });

  it("Velero's own metrics have its types, labels and buckets, and none is missing", () => {
    const expected = VELERO_METRICS.filter(({ name }) => !name.startsWith('velero_restore_'));
    expect(expected.map(({ name }) => definitions.get(name))).toEqual(expected);
    const known = VELERO_METRICS.map(({ name }) => name);
    const others = [...definitions.keys()].filter(
      (name) => /^(velero|podVolume)_/.test(name) && !known.includes(name),
    );
    // Of Velero 1.19.
    expect(others).toEqual(['velero_schedule_expected_interval_seconds']);
  });

  it.each(DASHBOARDS)('panels have numbers of their own, and lie side by side', (...own) => {
    const panels = own as (Panel & { gridPos: { x: number; y: number } })[];
    expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
    expect(new Set(panels.map(({ gridPos: { x, y } }) => `${x} ${y}`)).size).toBe(panels.length);
  });

  it('an alert tells of a failure of each kind, and no panel leaves one out', () => {
    const failing = RULES.filter(({ expr }) => /longshore_ended_total\{.*"Failed"/.test(expr));
    const told = failing.flatMap(({ expr }) =>
      matchersOf(expr).flatMap(([label, , value = '']) =>
        label === 'direction' ? value.split('|') : [],
      ),
    );
    expect(told.toSorted()).toEqual([...DIRECTIONS].sort());
    const ofSome = /direction="|podVolume_data_(up|down)load/;
    for (const [what, expr] of QUERIES) expect(expr, what).not.toMatch(ofSome);
  });

  it('an alert tells that no server leads, and that there is none, where there should be one', () => {
    const told = RULES.filter(({ expr }) => expr.includes('longshore_server_leading'));
    expect(told.map(({ expr }) => expr)).toEqual([
      'max(longshore_server_leading) == 0 or absent(longshore_server_leading)',
    ]);
    // In the other file, the alert would always fire for users without the server.
    expect(SERVER_RULES).toEqual(told);
    expect(read('docs/metrics.md')).toContain('manifests/monitoring/server-alerts.yaml');
  });

  it('metrics that are documented are there, with their labels', () => {
    const folder = join(ROOT, 'docs');
    const files = readdirSync(folder).filter((file) => file.endsWith('.md'));
    let found = 0;
    for (const file of files) {
      const text = read(`docs/${file}`);
      // `longshore_*` stands for all.
      for (const [name] of text.matchAll(/\b(?:longshore|podVolume)_[A-Za-z_]+[A-Za-z]\b(?!\*)/g)) {
        const isThere = labels.has(name) || labels.has(`${name}_bucket`);
        expect(isThere, `${file} names ${name}`).toBe(true);
        found++;
      }
    }
    expect(found).toBeGreaterThan(10);
    const rows = [
      ...read('docs/metrics.md').matchAll(
        /^\| `((?:longshore|podVolume|process|velero)_\w+)`[^|]*\| ([^|]*)\|/gm,
      ),
    ];
    const documented = new Map(
      rows.map(([, name = '', list = '']) => [
        name,
        [...list.matchAll(/`([^`]+)`/g)].map(([, label]) => label),
      ]),
    );
    const there = [...labels].flatMap(([name, all]) => {
      if (/_(bucket|sum)$/.test(name)) return [];
      const own = all.filter((label) => !OF_PROMETHEUS.includes(label));
      const metric = labels.has(name.replace(/_count$/, '_bucket'))
        ? name.replace(/_count$/, '')
        : name;
      return [[metric, own] as const];
    });
    expect(Object.fromEntries(documented)).toEqual(Object.fromEntries(there));
  });
});
