import { type Measurement, median } from './measure.ts';
import { PEERS, type Peer, type Side } from './peers.ts';
import type { Scenario } from './scenarios/types.ts';

export interface Result {
  readonly scenario: Scenario;
  readonly runs: Readonly<Partial<Record<Side, readonly Measurement[]>>>;
  readonly storedBytes: Readonly<Partial<Record<Side, number>>>;
}

const of = (result: Result, side: Side, field: keyof Measurement): number =>
  median((result.runs[side] ?? []).map((run) => run[field]));

/** Half of the distance between the fastest and the slowest run, in per cent of the median. */
function spread(result: Result, side: Side): number {
  const seconds = (result.runs[side] ?? []).map((run) => run.seconds);
  const middle = median(seconds);
  return (50 * (Math.max(...seconds) - Math.min(...seconds))) / middle;
}

export const ratioOf = (result: Result): number =>
  of(result, 'kopia', 'seconds') / of(result, 'ours', 'seconds');

const HEADER = [
  '| scenario | ours s | ± % | cpu s | MiB | kopia s | ± % | cpu s | MiB | kopia / ours | bar | stored, ours / kopia |',
  '|---|---|---|---|---|---|---|---|---|---|---|---|',
];

function row(result: Result): string {
  const { name, title, bar } = result.scenario;
  const cells = (side: Side): string[] => [
    of(result, side, 'seconds').toFixed(2),
    spread(result, side).toFixed(0),
    of(result, side, 'cpuSeconds').toFixed(2),
    of(result, side, 'peakMiB').toFixed(0),
  ];
  const stored = ((result.storedBytes.ours ?? 0) / (result.storedBytes.kopia ?? 0)).toFixed(3);
  const verdict = `${ratioOf(result).toFixed(2)}${isMissed(result) ? ' (missed)' : ''}`;
  const all = [
    `${name}: ${title}`,
    ...cells('ours'),
    ...cells('kopia'),
    verdict,
    bar ?? '',
    stored,
  ];
  return `| ${all.join(' | ')} |`;
}

/** The table of the report, one line for each scenario. */
export const markdownTable = (results: readonly Result[]): string =>
  [...HEADER, ...results.map(row)].join('\n');

/** Wall seconds and peak MiB of everybody who took part; empty when it was Kopia alone. */
export function peersTable(results: readonly Result[]): string {
  const others = PEERS.filter((peer) => peer !== 'kopia');
  const present = others.filter((peer) => results.some(({ runs }) => runs[peer]));
  if (present.length === 0) return '';
  const cell = (result: Result, side: Side): string =>
    result.runs[side]
      ? `${of(result, side, 'seconds').toFixed(2)} / ${of(result, side, 'peakMiB').toFixed(0)}`
      : '';
  const sides: Side[] = ['ours', 'kopia', ...present];
  const rows = results
    .filter(({ runs }) => present.some((peer) => runs[peer]))
    .map((result) => {
      const { name, title } = result.scenario;
      return `| ${[`${name}: ${title}`, ...sides.map((side) => cell(result, side))].join(' | ')} |`;
    });
  const runs = (side: Peer): number => results[0]?.runs[side]?.length ?? 0;
  const heads = present.map((peer) => `${peer} (runs: ${runs(peer)})`);
  return [
    'Wall seconds / peak MiB:',
    '',
    `| scenario | ours | kopia | ${heads.join(' | ')} |`,
    `|${'---|'.repeat(sides.length + 1)}`,
    ...rows,
  ].join('\n');
}

/** A saved run: `bench/results/report.json`. */
export interface Report {
  readonly date: string;
  readonly commit: string;
  readonly node: string;
  readonly kopia: string;
  readonly cpu: string;
  readonly cores: number;
  readonly results: readonly Result[];
}

const isMissed = (result: Result): boolean =>
  result.scenario.bar !== undefined && ratioOf(result) < result.scenario.bar;

/** `ours / Kopia's`. */
const pair = (result: Result, field: keyof Measurement, digits: number): string =>
  `${of(result, 'ours', field).toFixed(digits)} / ${of(result, 'kopia', field).toFixed(digits)}`;

const table = (rows: readonly (readonly string[])[]): string =>
  rows
    .toSpliced(1, 0, rows[0]?.map(() => '---') ?? [])
    .map((cells) => `| ${cells.join(' | ')} |`)
    .join('\n');

function conditionsText({ date, commit, node, kopia, cpu, cores, results }: Report): string {
  const pairs = Math.min(...results.map(({ runs }) => runs.ours?.length ?? 0));
  return `Measured on ${date} at commit ${commit} with Node ${node}, Kopia ${kopia} and ${cores} cores (${cpu}). All figures are medians of at least ${pairs} pairs.`;
}

function engineTable(report: Report): string {
  const rows = report.results.map((result) => [
    `${result.scenario.name}: ${result.scenario.title}`,
    pair(result, 'seconds', 1),
    pair(result, 'peakMiB', 0),
    ratioOf(result).toFixed(2),
  ]);
  const header = ['Longshore / Kopia', 'seconds', 'peak MiB', 'times as fast'];
  return `${conditionsText(report)}\n\n${table([header, ...rows])}`;
}

function missedTable({ results }: Report): string {
  const rows = results
    .filter(isMissed)
    .map((result) => [
      `${result.scenario.name}: ${result.scenario.title}`,
      pair(result, 'seconds', 2),
      pair(result, 'cpuSeconds', 2),
      pair(result, 'peakMiB', 0),
      ratioOf(result).toFixed(2),
      String(result.scenario.bar),
    ]);
  const header = ['missed: Longshore / Kopia', 'seconds', 'CPU s', 'peak MiB', 'ratio', 'bar'];
  const met = results
    .filter((result) => !isMissed(result))
    .map((result) => `\`${result.scenario.name} ${ratioOf(result).toFixed(2)}\``);
  return `${table([header, ...rows])}\n\nMet: ${met.join(', ')}.`;
}

/** `text`: the report of `bench/s3.ts`. Only its table is stored. */
function s3Table(text: string): string {
  const rows = text
    .split('\n')
    .filter((line) => /^\| [A-Z]: /.test(line))
    .map((line) => {
      const [title = '', ours, , , memory, kopia, , , kopiaMemory, ratio = '', bar = ''] = line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim());
      return [title, `${ours} / ${kopia}`, `${memory} / ${kopiaMemory}`, ratio, bar];
    });
  return table([['Longshore / Kopia', 'seconds', 'peak MiB', 'times as fast', 'bar'], ...rows]);
}

/** The counts of a run of `bench/s3.ts`: `bench/results/requests.json`. */
export interface CountedRequests {
  readonly date: string;
  readonly kopia: string;
  readonly rows: readonly {
    readonly what: string;
    readonly caches: 'cold' | 'warm';
    /** In units. */
    readonly size: number;
    readonly unit: string;
    /** Requests by method and kind of blob, in the terms of request-counter.ts. */
    readonly ours: Readonly<Record<string, number>>;
    readonly kopia: Readonly<Record<string, number>>;
  }[];
}

export function requestsTable({ date, kopia, rows }: CountedRequests): string {
  const cell = (
    { ours, kopia, size }: CountedRequests['rows'][number],
    methods: RegExp,
    share: boolean,
  ): string => {
    const sum = (counts: Readonly<Record<string, number>>): number =>
      Object.entries(counts)
        .filter(([kind]) => methods.test(kind))
        .reduce((total, [, count]) => total + count, 0);
    const both = [ours, kopia].map(sum).map((count) => (share ? Math.round(count / size) : count));
    return both.join(' / ');
  };
  const lines = rows.map((row) => [
    `${row.what}, ${row.caches} caches`,
    `${row.size.toFixed(2)} ${row.unit}`,
    cell(row, /^(PUT|POST|LIST|DELETE)/, false),
    cell(row, /^(GET|HEAD)/, false),
    cell(row, /./, true),
  ]);
  const header = ['Longshore / Kopia', 'size', 'PUT, LIST, DELETE', 'GET, HEAD', 'all, per unit'];
  return `Counted on ${date}, Kopia ${kopia}.\n\n${table([header, ...lines])}`;
}

/** Saved reports, as `bench/results/` has them. */
export interface SavedFigures {
  readonly report: Report;
  readonly s3: string;
  readonly requests: CountedRequests;
}

/**
 * A page with its blocks of figures written again from the saved reports. Throws if a block is
 * unknown.
 */
export function withFigures(page: string, { report, s3, requests }: SavedFigures): string {
  const blocks: Readonly<Partial<Record<string, () => string>>> = {
    conditions: () => conditionsText(report),
    engine: () => engineTable(report),
    missed: () => missedTable(report),
    s3: () => s3Table(s3),
    requests: () => requestsTable(requests),
  };
  return page.replaceAll(
    /(<!-- figures: (\w+) .*?-->\n).*?(<!-- end of figures -->)/gs,
    (_, head: string, name: string, end: string) => {
      const block = blocks[name];
      if (!block) throw new Error(`no such figures: ${name}`);
      return `${head}\n${block()}\n\n${end}`;
    },
  );
}

const BAR_HEIGHT = 14;
const ROW_HEIGHT = 44;
const LABEL_WIDTH = 330;
const CHART_WIDTH = 420;

/** Bars of wall seconds, each pair to its own longer one. */
export function svgChart(results: readonly Result[], caption: string): string {
  const escape = (text: string): string =>
    text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');
  const rows = results.map((result, i) => {
    const y = 34 + i * ROW_HEIGHT;
    const longest = Math.max(of(result, 'ours', 'seconds'), of(result, 'kopia', 'seconds'));
    const bar = (side: Side, offset: number, colour: string): string => {
      const seconds = of(result, side, 'seconds');
      const width = (CHART_WIDTH * seconds) / longest;
      const label = `${side === 'ours' ? 'Longshore' : 'Kopia'} ${seconds.toFixed(2)} s`;
      return [
        `<rect x="${LABEL_WIDTH}" y="${y + offset}" width="${width.toFixed(1)}" height="${BAR_HEIGHT}" fill="${colour}"/>`,
        `<text x="${LABEL_WIDTH + 6}" y="${y + offset + 11}" fill="#fff">${label}</text>`,
      ].join('');
    };
    const title = escape(`${result.scenario.name}: ${result.scenario.title}`);
    return [
      `<text x="8" y="${y + 19}">${title}</text>`,
      bar('ours', 0, '#0b7285'),
      bar('kopia', BAR_HEIGHT + 2, '#868e96'),
      `<text x="${LABEL_WIDTH + CHART_WIDTH + 10}" y="${y + 19}" font-weight="bold">${ratioOf(result).toFixed(2)} x</text>`,
    ].join('\n');
  });
  const height = 40 + results.length * ROW_HEIGHT;
  const width = LABEL_WIDTH + CHART_WIDTH + 80;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" font-size="11">
<rect width="100%" height="100%" fill="#fff"/>
<text x="8" y="18" font-weight="bold">${escape(caption)}</text>
${rows.join('\n')}
</svg>
`;
}
