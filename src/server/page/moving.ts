import { type Html, html, type HtmlValue, named } from './html.ts';
import {
  backupLink,
  barOf,
  bytesOf,
  leftOf,
  moreOf,
  numberText,
  phaseOf,
  rateOf,
  tableOf,
  timeOf,
} from './layout.ts';
import { ownerNameOf } from './problems.ts';
import type { RunRow } from './rows.ts';
import type { World } from './view.ts';
import type { PageVolume } from './volumes.ts';

/** Our choice: what is beyond is on the pages of the backups. */
const ROWS_MAX = 100;
const MOVING = ['InProgress', 'Canceling'];

export const isMoving = ({ phase }: PageVolume): boolean => MOVING.includes(phase);

/** Of volumes together. */
export interface Totals {
  readonly count: number;
  readonly ended: number;
  readonly bytesDone: number;
  /** 0 where that of one is not known. */
  readonly totalBytes: number;
  readonly bytesPerSecond: number;
  readonly secondsLeft: number | undefined;
}

export function totalsOf(volumes: readonly PageVolume[]): Totals {
  const sum = (of: (volume: PageVolume) => number): number =>
    volumes.reduce((total, volume) => total + of(volume), 0);
  const isKnown = volumes.every(({ totalBytes, isOver }) => totalBytes > 0 || isOver);
  const bytesDone = sum((volume) => volume.bytesDone);
  const totalBytes = isKnown ? sum((volume) => Math.max(volume.bytesDone, volume.totalBytes)) : 0;
  const bytesPerSecond = sum((volume) => volume.bytesPerSecond ?? 0);
  const hasEnd = totalBytes > bytesDone && bytesPerSecond > 0;
  return {
    ...{ count: volumes.length, ended: sum(({ isOver }) => Number(isOver)) },
    ...{ bytesDone, totalBytes, bytesPerSecond },
    secondsLeft: hasEnd ? (totalBytes - bytesDone) / bytesPerSecond : undefined,
  };
}

/** Backups and restores that are under way, with the volumes of each together. */
export function underWaySection(
  world: World,
  volumesOf: (run: RunRow) => readonly PageVolume[],
): Html {
  const runs = [...world.backups, ...world.restores].filter(({ isOver }) => !isOver);
  const shown = runs.slice(0, ROWS_MAX);
  const rows = shown.map((run) => {
    const totals = totalsOf(volumesOf(run));
    return [
      run.kind === 'Backup' ? backupLink(run.name) : named(run.name),
      run.kind,
      [phaseOf(run.phase), run.queuePosition > 0 && ` (place ${run.queuePosition} in the queue)`],
      itemsOf(run),
      totals.count === 0 ? '' : `${totals.ended} of ${totals.count} ended`,
      [
        barOf(totals.bytesDone, totals.totalBytes, `Bytes of ${run.name}`),
        ` ${totals.bytesDone > 0 ? bytesOf(totals.bytesDone) : ''}`,
      ],
      totals.bytesPerSecond > 0 ? rateOf(totals.bytesPerSecond) : '',
      leftOf(totals.secondsLeft),
      timeOf(run.beganMs, world.nowMs),
    ] satisfies HtmlValue[];
  });
  return html`<section aria-labelledby="under-way">
    <h2 id="under-way">Under way</h2>
    ${tableOf({
      id: 'runs',
      caption: 'Backups and restores that have not ended',
      columns: ['Name', 'Kind', 'Phase', 'Items', 'Volumes', 'Data', '#Rate', '#Left', 'Began'],
      rows,
      empty: 'No backup and no restore is under way.',
    })}
    ${moreOf(runs.length, shown.length)}
  </section>`;
}

function itemsOf({ itemsDone, itemsTotal, name }: RunRow): HtmlValue {
  if (itemsTotal === 0) return '';
  const text = ` ${numberText(itemsDone)} of ${numberText(itemsTotal)}`;
  return [barOf(itemsDone, itemsTotal, `Items of ${name}`), text];
}

/** Volumes whose bytes are being moved. */
export function volumesSection(world: World): Html {
  const moving = (world.volumes?.underWay ?? []).filter(isMoving);
  const shown = moving.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="moving">
    <h2 id="moving">Volumes being moved</h2>
    ${tableOf({
      id: 'volumes',
      caption: 'Volumes whose data is being moved, oldest first',
      columns: ['Volume', 'For', 'Node', 'Done', '#Bytes', '#Rate', '#Left', 'Note'],
      rows: shown.map((volume) => [
        named(volume.volume),
        ownerOf(world, volume),
        named(volume.node),
        barOf(volume.bytesDone, volume.totalBytes, `Bytes of ${volume.volume}`),
        bytesText(volume),
        rateOf(volume.bytesPerSecond),
        leftOf(volume.secondsLeft),
        volume.phase === 'Canceling' ? 'being canceled' : '',
      ]),
      empty: world.volumes ? 'No volume is being moved.' : 'Volumes have not been read yet.',
    })}
    ${moreOf(moving.length, shown.length)}
  </section>`;
}

export function bytesText({ bytesDone, totalBytes }: PageVolume): string {
  if (totalBytes > 0) return `${bytesOf(bytesDone)} of ${bytesOf(totalBytes)}`;
  return bytesDone > 0 ? bytesOf(bytesDone) : '';
}

function ownerOf(world: World, volume: PageVolume): HtmlValue {
  const { owner } = volume;
  const name = ownerNameOf(world, volume);
  if (name === '') return '';
  return owner.kind === 'Backup' ? ['backup ', backupLink(name)] : ['restore ', named(name)];
}

/** Volumes that are not moved yet, or not cleaned up, and for what each waits. */
export function waitingSection(world: World): Html {
  const waiting = (world.volumes?.underWay ?? []).filter((volume) => !isMoving(volume));
  const shown = waiting.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="waiting">
    <h2 id="waiting">Waiting</h2>
    ${tableOf({
      id: 'waiters',
      caption: 'Operations that wait, oldest first, and for what',
      columns: ['Volume', 'Operation', 'For', 'Phase', '#Age', 'Waits for'],
      rows: shown.map((volume) => [
        named(volume.volume),
        [volume.kind, ' ', named(volume.name)],
        ownerOf(world, volume),
        phaseOf(volume.phase),
        leftOf(volume.ageSeconds),
        named(volume.waitsFor),
      ]),
      empty: 'No operation is waiting.',
    })}
    ${moreOf(waiting.length, shown.length)}
  </section>`;
}

/** Nodes with something to do. */
export function nodesSection({ volumes }: World): Html {
  const nodes = Map.groupBy(
    (volumes?.underWay ?? []).filter(({ node }) => node !== ''),
    ({ node }) => node,
  );
  const sorted = [...nodes].sort(([a], [b]) => (a < b ? -1 : 1));
  const shown = sorted.slice(0, ROWS_MAX);
  return html`<section aria-labelledby="nodes">
    <h2 id="nodes">Nodes</h2>
    ${tableOf({
      id: 'busy-nodes',
      caption: 'Nodes that move volumes, or are about to',
      columns: ['Node', '#Moving', '#Being prepared', '#Rate', 'Volumes'],
      rows: shown.map(([node, own]) => {
        const moving = own.filter(isMoving);
        const totals = totalsOf(moving);
        const some = moving.slice(0, 3).map(({ volume }, at) => [at > 0 && ', ', named(volume)]);
        const more = moving.length > 3 && `, and ${moving.length - 3} more`;
        return [
          named(node),
          moving.length,
          own.length - moving.length,
          totals.bytesPerSecond > 0 ? rateOf(totals.bytesPerSecond) : '',
          [some, more],
        ];
      }),
      empty: 'No node moves a volume.',
    })}
    ${moreOf(sorted.length, shown.length)}
  </section>`;
}
