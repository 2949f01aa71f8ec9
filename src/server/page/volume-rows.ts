import { isMovementRunning } from '../../kube/index.ts';
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
  restoreLink,
  tableOf,
  timeOf,
} from './layout.ts';
import { ownerNameOf } from './problems.ts';
import type { RunRow } from './rows.ts';
import type { World } from './view.ts';
import type { PageVolume } from './volumes.ts';

/** Our choice: pages of backups show more. */
const ROWS_MAX = 100;
/** Limit for names of idle nodes. Our choice. */
const IDLE_MAX = 10;

export const isMoving = ({ phase }: PageVolume): boolean => isMovementRunning(phase);

/** Sums over volumes. */
export interface Totals {
  readonly count: number;
  readonly ended: number;
  readonly bytesDone: number;
  /** 0 if a volume's size is unknown. */
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
    count: volumes.length,
    ended: sum(({ isOver }) => Number(isOver)),
    bytesDone,
    totalBytes,
    bytesPerSecond,
    secondsLeft: hasEnd ? (totalBytes - bytesDone) / bytesPerSecond : undefined,
  };
}

type VolumesOf = (run: RunRow) => readonly PageVolume[];

/**
 * Running backups and restores, volumes and nodes. Empty parts have no heading and no table. Mostly
 * all parts are empty, and a single line says so.
 */
export function movingSections(world: World, volumesOf: VolumesOf): readonly MovingSection[] {
  const runs = underWaySection(world, volumesOf);
  const others: readonly MovingSection[] = [
    { id: 'moving', title: 'Volumes', ...volumesSection(world) },
    { id: 'waiting', title: 'Waiting', ...waitingSection(world) },
    { id: 'nodes', title: 'Nodes', ...nodesSection(world) },
  ];
  const empty = [runs, ...others]
    .map(({ quiet = '' }) => quiet)
    .filter((quiet) => quiet !== '')
    .join(' ');
  const body = html`<section aria-labelledby="under-way">
    <h2 id="under-way">Under way</h2>
    ${runs.body} ${empty !== '' && html`<p class="dim">${empty}</p>`}
  </section>`;
  return [
    { id: 'under-way', title: 'Under way', body, quiet: undefined },
    ...others.filter(({ quiet }) => quiet === undefined),
  ];
}

export interface MovingSection extends Part {
  readonly id: string;
  /** In the table of contents. */
  readonly title: string;
}

interface Part {
  readonly body: Html | undefined;
  /** Text if there is nothing to show. */
  readonly quiet: string | undefined;
}

const quietly = (quiet: string): Part => ({ body: undefined, quiet });

/** Running backups and restores, with the sums of their volumes. */
function underWaySection(world: World, volumesOf: VolumesOf): Part {
  const runs = [...world.backups, ...world.restores].filter(({ isOver }) => !isOver);
  if (runs.length === 0) {
    return quietly(
      world.unread.has('restores')
        ? 'No backup is under way.'
        : 'No backup and no restore is under way.',
    );
  }
  const shown = runs.slice(0, ROWS_MAX);
  const rows = shown.map((run) => {
    const totals = totalsOf(volumesOf(run));
    return [
      run.kind === 'Backup' ? backupLink(run.name) : restoreLink(run.name),
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
  const body = html`${tableOf({
    id: 'runs',
    caption: 'Backups and restores that have not ended',
    columns: ['Name', 'Kind', 'Phase', 'Items', 'Volumes', 'Data', '#Rate', '#Left', 'Began'],
    rows,
  })}
  ${moreOf(runs.length, shown.length)}`;
  return { body, quiet: undefined };
}

function itemsOf({ itemsDone, itemsTotal, name }: RunRow): HtmlValue {
  if (itemsTotal === 0) return '';
  const text = ` ${numberText(itemsDone)} of ${numberText(itemsTotal)}`;
  return [barOf(itemsDone, itemsTotal, `Items of ${name}`), text];
}

function volumesSection(world: World): Part {
  // The other two parts stay silent then.
  if (!world.volumes) return quietly('Volumes have not been read yet.');
  const moving = world.volumes.underWay.filter(isMoving);
  if (moving.length === 0) return quietly('No volume is being moved.');
  const shown = moving.slice(0, ROWS_MAX);
  const body = html`<section aria-labelledby="moving">
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
    })}
    ${moreOf(moving.length, shown.length)}
  </section>`;
  return { body, quiet: undefined };
}

export function bytesText({ bytesDone, totalBytes }: PageVolume): string {
  if (totalBytes > 0) return `${bytesOf(bytesDone)} of ${bytesOf(totalBytes)}`;
  return bytesDone > 0 ? bytesOf(bytesDone) : '';
}

function ownerOf(world: World, volume: PageVolume): HtmlValue {
  const { owner } = volume;
  const name = ownerNameOf(world, volume);
  if (name === '') return '';
  return owner.kind === 'Backup' ? ['backup ', backupLink(name)] : ['restore ', restoreLink(name)];
}

/** Volumes whose move has not begun or is being cleaned up, with the reason. */
function waitingSection(world: World): Part {
  const waiting = (world.volumes?.underWay ?? []).filter((volume) => !isMoving(volume));
  if (waiting.length === 0) return quietly(world.volumes ? 'No operation is waiting.' : '');
  const shown = waiting.slice(0, ROWS_MAX);
  const body = html`<section aria-labelledby="waiting">
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
    })}
    ${moreOf(waiting.length, shown.length)}
  </section>`;
  return { body, quiet: undefined };
}

/** Nodes with work. */
function nodesSection({ volumes }: World): Part {
  const nodes = Map.groupBy(
    (volumes?.underWay ?? []).filter(({ node }) => node !== ''),
    ({ node }) => node,
  );
  const idle = idleText((volumes?.agentNodes ?? []).filter((node) => !nodes.has(node)));
  if (nodes.size === 0) return quietly(volumes ? `No node moves a volume. ${idle}`.trim() : '');
  const sorted = [...nodes].sort(([a], [b]) => (a < b ? -1 : 1));
  const shown = sorted.slice(0, ROWS_MAX);
  const body = html`<section aria-labelledby="nodes">
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
    })}
    ${moreOf(sorted.length, shown.length)} ${idle !== '' && html`<p class="dim">${idle}</p>`}
  </section>`;
  return { body, quiet: undefined };
}

/** Names nodes with an idle agent. */
function idleText(nodes: readonly string[]): string {
  if (nodes.length === 0) return '';
  const more = nodes.length - IDLE_MAX;
  return `Idle: ${nodes.slice(0, IDLE_MAX).join(', ')}${more > 0 ? `, and ${numberText(more)} more` : ''}.`;
}
