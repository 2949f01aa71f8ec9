import { formatBytes } from '../../../base/index.ts';
import { hasMovementFailed, MOVING_FIRST, type Tone, toneOf } from '../../../kube/index.ts';
import { countOf, numberText } from '../../output/numbers.ts';
import { formatElapsed } from '../../progress/lines.ts';
import type { Column } from '../../output/table.ts';
import { fittingTable, wideTable } from '../../output/table.ts';
import { formatDuration, printable, terminalWidth } from '../../output/terminal.ts';
import { paint } from '../colours.ts';
import { expiryCell, selectorCell, timeCell } from '../columns.ts';
import type { DescribedVolume } from './described-objects.ts';
import type { DescribedRun } from './describe-run.ts';

/** Limit for each list without `--details`. */
const SHOWN_MAX = 10;
const LABEL = 12;

type Field = readonly [label: string, text: string, tone?: Tone];

/** Lines of `label: text`. Fields without a text are skipped. */
export const fieldLines = (fields: readonly Field[]): string[] =>
  fields
    .filter(([, text]) => text !== '')
    .map(([label, text, tone = 'plain']) => `${`${label}:`.padEnd(LABEL)} ${paint(text, tone)}`);

/** Lines for people, all printable. */
export function runLines(
  run: DescribedRun,
  { isDetailed, nowMs }: { readonly isDetailed: boolean; readonly nowMs: number },
): string[] {
  const { kind, phase, items, operations, snapshots, hooks, errorCount, warningCount } = run;
  const totals = totalsText(run.volumes);
  const failedText = (failed: number): string =>
    failed > 0 ? `, ${numberText(failed)} failed` : '';
  const fields: Field[] = [
    [kind, run.name],
    ['Namespace', run.namespace],
    ['Phase', run.isDeleting ? `${phase} (deleting)` : phase, toneOf(phase)],
    ['Backup', run.backup ?? ''],
    ['Schedule', run.schedule ?? ''],
    ['Location', run.storageLocation ?? ''],
    ['In place', inPlaceText(run.spec)],
    ['Requested', timeCell(run.requestedAt)],
    ['Started', timeCell(run.startedAt)],
    [
      'Ended',
      run.endedAt ? `${timeCell(run.endedAt)}, after ${formatElapsed(run.seconds ?? 0)}` : '',
    ],
    [
      'Running',
      !run.isOver && run.seconds !== undefined ? `for ${formatElapsed(run.seconds)}` : '',
    ],
    [
      'Expires',
      run.expiresAt ? `${timeCell(run.expiresAt)} (${expiryCell(run.expiresAt, nowMs)})` : '',
    ],
    ['Queue', run.queuePosition ? `number ${run.queuePosition}` : ''],
    ['Items', items.total > 0 ? `${numberText(items.done)} of ${numberText(items.total)}` : ''],
    ['Snapshots', snapshots.asked > 0 ? `${snapshots.completed} of ${snapshots.asked} taken` : ''],
    ['Volumes', totals],
    [
      'Operations',
      operations.asked > 0
        ? `${numberText(operations.completed + operations.failed)} of ${numberText(operations.asked)} ended${failedText(operations.failed)}`
        : '',
    ],
    ['Hooks', hooks.run > 0 ? `${numberText(hooks.run)} run${failedText(hooks.failed)}` : ''],
    ['Errors', numberText(errorCount), errorCount > 0 ? 'bad' : 'plain'],
    ['Warnings', numberText(warningCount), warningCount > 0 ? 'doubtful' : 'plain'],
  ];
  const limit = isDetailed ? Infinity : SHOWN_MAX;
  return [
    ...fieldLines(fields),
    ...(isDetailed ? takenLines(run) : []),
    ...listLines('Why', run.reasons, Infinity, 'bad'),
    ...volumeLines(run.volumes, limit),
    ...(isDetailed ? listLines('Decided by rules and pods', decidedOf(run.volumes), limit) : []),
    ...(isDetailed ? listLines('Notes on volumes', notesOf(run.volumes), limit) : []),
    ...listLines('Failed volumes', failuresOf(run.volumes), limit, 'bad'),
    ...listLines('Errors', run.errors ?? [], limit, 'bad'),
    ...listLines('Warnings', run.warnings ?? [], limit, 'doubtful'),
    ...notReadLines(run),
    ...listLines('What to do', run.next, Infinity),
  ];
}

/** The treatment of existing volumes by a Restore; empty for nothing. */
function inPlaceText(spec: object): string {
  const { existingVolumeDataPolicy: policy, uploaderConfig } = spec as {
    existingVolumeDataPolicy?: string | null;
    uploaderConfig?: { deleteExtraFiles?: boolean | null } | null;
  };
  if (policy !== 'full' && policy !== 'incremental') return '';
  const isExact = uploaderConfig?.deleteExtraFiles === true;
  return `${policy}: volumes that are there are brought back, and files that the backup does not have ${isExact ? 'are removed' : 'stay'}`;
}

function notReadLines({ notRead, errorCount, warningCount, isOver }: DescribedRun): string[] {
  if (notRead === undefined) {
    const isLater = !isOver && errorCount + warningCount > 0;
    return isLater ? ['', 'Errors and warnings are stored when it has ended.'] : [];
  }
  return [
    '',
    paint(
      `Its errors, warnings and volumes cannot be read from the bucket: ${notRead}`,
      'doubtful',
    ),
  ];
}

function takenLines({ spec, labels, annotations }: DescribedRun): string[] {
  const pairs = (map: Readonly<Record<string, string>>): string[] =>
    Object.entries(map).map(([key, value]) => `${key}=${value}`);
  return [
    ...listLines('Spec', specTexts(spec), Infinity),
    ...listLines('Labels', pairs(labels), Infinity),
    ...listLines('Annotations', pairs(annotations), Infinity),
  ];
}

/** The requested fields. Velero writes `0s` and `{}` for fields that are not set. */
export const specTexts = (spec: object): string[] =>
  Object.entries(spec)
    .filter(([, value]) => value !== '0s' && value !== null && JSON.stringify(value) !== '{}')
    .map(([name, value]: [string, unknown]) => `${name}: ${specText(name, value)}`);

function specText(name: string, value: unknown): string {
  if (name === 'labelSelector') return selectorCell(value);
  if (name === 'orLabelSelectors' && Array.isArray(value)) {
    return value.map(selectorCell).join(' or ');
  }
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function totalsText(volumes: readonly DescribedVolume[]): string {
  if (volumes.length === 0) return '';
  const bytes = volumes.reduce((sum, { bytesDone }) => sum + bytesDone, 0);
  const phases = [...Map.groupBy(volumes, ({ phase }) => phase || 'unknown')];
  const words = phases.map(([phase, list]) => `${numberText(list.length)} ${phase}`);
  return `${numberText(volumes.length)} (${words.join(', ')}), ${formatBytes(bytes)}`;
}

const COLUMNS: readonly Column[] = [
  { title: 'VOLUME', isWhole: true },
  { title: 'HOW', leaveOut: 3 },
  { title: 'PHASE' },
  { title: 'NODE', leaveOut: 4 },
  { title: 'DONE' },
  { title: 'RATE', leaveOut: 2 },
  { title: 'LEFT', leaveOut: 1 },
  { title: 'NOTE', min: 24 },
];

const hasFailed = ({ phase }: DescribedVolume): boolean => hasMovementFailed(phase);

/** The full reasons, which the table has no room for. */
const failuresOf = (volumes: readonly DescribedVolume[]): string[] =>
  volumes.filter(hasFailed).map(({ volume, note, phase }) => `${volume}: ${note || phase}`);

/** The full notes, because the table may cut them. They name the rules that excluded paths. */
const notesOf = (volumes: readonly DescribedVolume[]): string[] =>
  volumes.flatMap(({ volume, note, phase }) =>
    phase === 'Completed' && note !== '' ? [`${volume}: ${note}`] : [],
  );

/** Why each volume is handled as it is, except for defaults. */
const decidedOf = (volumes: readonly DescribedVolume[]): string[] =>
  volumes.flatMap(({ volume, decidedBy }) =>
    decidedBy === undefined ? [] : [`${volume}: decided by ${decidedBy}`],
  );

const FIRST: readonly string[] = ['Failed', 'Canceled', ...MOVING_FIRST];

/** Failed volumes first, then running ones. */
function volumeLines(all: readonly DescribedVolume[], limit: number): string[] {
  if (all.length === 0) return [];
  const placeOf = ({ phase }: DescribedVolume): number =>
    FIRST.includes(phase) ? FIRST.indexOf(phase) : FIRST.length;
  const shown = all.toSorted((a, b) => placeOf(a) - placeOf(b)).slice(0, limit);
  const rows = shown.map((row) => [
    row.volume,
    row.method,
    row.phase,
    row.node,
    doneText(row),
    row.bytesPerSecond === undefined ? '' : `${formatBytes(row.bytesPerSecond)}/s`,
    row.secondsLeft === undefined ? '' : formatDuration(row.secondsLeft),
    hasFailed(row) ? '' : row.note.replaceAll(/\s*\n\s*/g, ' '),
  ]);
  const width = terminalWidth();
  const isUsed = (at: number): boolean => rows.some((row) => row[at] !== '');
  const used = COLUMNS.map((_, at) => at).filter(isUsed);
  const columns = used.map((at) => COLUMNS[at] ?? { title: '' });
  const cells = rows.map((row) => used.map((at) => row[at] ?? ''));
  const lines =
    width === undefined ? wideTable(columns, cells) : fittingTable(columns, cells, width);
  return ['', ...lines, ...moreLine(all.length - shown.length, 'volumes')];
}

function doneText({ bytesDone, totalBytes }: DescribedVolume): string {
  if (bytesDone === 0 && totalBytes === 0) return '';
  if (totalBytes <= bytesDone) return formatBytes(bytesDone);
  return `${formatBytes(bytesDone)} of ${formatBytes(totalBytes)} (${Math.floor((100 * bytesDone) / totalBytes)}%)`;
}

const moreLine = (count: number, noun: string): string[] =>
  count > 0 ? [`... and ${countOf(count, noun)} more; --details shows all`] : [];

export function listLines(
  title: string,
  texts: readonly string[],
  limit: number,
  tone: Tone = 'plain',
): string[] {
  if (texts.length === 0) return [];
  const shown = texts
    .slice(0, limit)
    .map((text) => `  ${printable(text.replaceAll(/\s*\n\s*/g, ' '))}`);
  return [
    '',
    paint(`${title}:`, tone),
    ...shown,
    ...moreLine(texts.length - shown.length, 'entries').map((line) => `  ${line}`),
  ];
}
