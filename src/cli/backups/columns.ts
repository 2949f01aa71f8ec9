import { ageText, parseGoTime, selectorOf } from '../../base/index.ts';
import { numberText } from '../output/numbers.ts';
import type { Column } from '../output/table.ts';
import { timeText } from '../output/time-text.ts';
import { itemsOf, phaseOf, type Run } from './noun.ts';
import type { Schedule } from './create/specs.ts';

/** A row of a table. The columns are Velero's in its order, and the items. */
export interface Shown {
  readonly name: string;
  readonly cells: readonly string[];
}

const column = (title: string, more: Omit<Column, 'title'> = {}): Column => ({ title, ...more });

export const BACKUP_COLUMNS: readonly Column[] = [
  column('NAME', { isWhole: true }),
  column('STATUS'),
  column('ERRORS', { leaveOut: 1 }),
  column('WARNINGS', { leaveOut: 2 }),
  column('CREATED', { leaveOut: 3 }),
  column('EXPIRES', { leaveOut: 4 }),
  column('STORAGE LOCATION', { leaveOut: 6 }),
  column('QUEUE POSITION', { leaveOut: 5 }),
  column('SELECTOR', { leaveOut: 8, min: 8 }),
  column('ITEMS', { leaveOut: 7 }),
];

export const RESTORE_COLUMNS: readonly Column[] = [
  column('NAME', { isWhole: true }),
  column('BACKUP', { min: 12 }),
  column('STATUS'),
  column('STARTED', { leaveOut: 4 }),
  column('COMPLETED', { leaveOut: 5 }),
  column('ERRORS', { leaveOut: 1 }),
  column('WARNINGS', { leaveOut: 2 }),
  column('CREATED', { leaveOut: 6 }),
  column('SELECTOR', { leaveOut: 8, min: 8 }),
  column('ITEMS', { leaveOut: 7 }),
];

export const SCHEDULE_COLUMNS: readonly Column[] = [
  column('NAME', { isWhole: true }),
  column('STATUS'),
  column('CREATED', { leaveOut: 3 }),
  column('SCHEDULE'),
  column('BACKUP TTL', { leaveOut: 2 }),
  column('LAST BACKUP'),
  column('SELECTOR', { leaveOut: 4, min: 8 }),
  column('PAUSED'),
];

export const statusOf = (run: Run): string => {
  if (run.metadata.deletionTimestamp === undefined) return phaseOf(run);
  return run.kind === 'Backup' ? 'Deleting' : `${phaseOf(run)} (Deleting)`;
};

export function backupCells(backup: Run, nowMs: number): string[] {
  const { spec = {}, status = {} } = backup;
  return [
    backup.metadata.name,
    statusOf(backup),
    numberText(status.errors ?? 0),
    numberText(status.warnings ?? 0),
    timeCell(status.startTimestamp),
    expiryCell(status.expiration, nowMs),
    spec.storageLocation ?? '',
    status.queuePosition ? String(status.queuePosition) : '',
    selectorCell(spec['labelSelector']),
    itemsCell(backup),
  ];
}

export function restoreCells(restore: Run): string[] {
  const { metadata, spec = {}, status = {} } = restore;
  return [
    metadata.name,
    spec.backupName ?? '',
    statusOf(restore),
    timeCell(status.startTimestamp),
    timeCell(status.completionTimestamp),
    numberText(status.errors ?? 0),
    numberText(status.warnings ?? 0),
    timeCell(metadata.creationTimestamp),
    selectorCell(spec['labelSelector']),
    itemsCell(restore),
  ];
}

export function scheduleCells(
  { metadata, spec = {}, status = {} }: Schedule,
  nowMs: number,
): string[] {
  const { ttl, labelSelector } = spec.template ?? {};
  return [
    metadata.name,
    status.phase || 'New',
    timeCell(metadata.creationTimestamp),
    spec.schedule ?? '',
    typeof ttl === 'string' ? ttl : '',
    expiryCell(status.lastBackup, nowMs),
    selectorCell(labelSelector),
    String(spec.paused === true),
  ];
}

function itemsCell(run: Run): string {
  const { done, total } = itemsOf(run);
  return total === 0
    ? ''
    : done === total
      ? numberText(total)
      : `${numberText(done)}/${numberText(total)}`;
}

/** Empty without a time. Invalid times are shown unchanged. */
export function timeCell(text: string | null | undefined): string {
  if (!text) return '';
  try {
    return timeText(parseGoTime(text));
  } catch {
    return text;
  }
}

/** `29d`, `3h ago`. */
export function expiryCell(text: string | null | undefined, nowMs: number): string {
  const seconds = (Date.parse(text ?? '') - nowMs) / 1000;
  if (Number.isNaN(seconds)) return 'n/a';
  return seconds >= 0 ? ageText(seconds) : `${ageText(-seconds)} ago`;
}

export function selectorCell(selector: unknown): string {
  if (!selector) return '<none>';
  try {
    return selectorOf(selector).text || '<none>';
  } catch {
    return JSON.stringify(selector);
  }
}

const TIMESTAMP = /-\d{14}$/;

/** Velero's order: pkg/cmd/util/output/backup_printer.go. */
export function byPrefixAndTime(a: Shown, b: Shown): number {
  const [aStamp, bStamp] = [TIMESTAMP.exec(a.name), TIMESTAMP.exec(b.name)];
  const isNewestFirst =
    aStamp && bStamp && a.name.slice(0, aStamp.index) === b.name.slice(0, bStamp.index);
  const order = a.name < b.name ? -1 : a.name > b.name ? 1 : 0;
  return isNewestFirst ? -order : order;
}
