import type { Command } from 'commander';
import type { SnapshotHolder, SnapshotHolders } from '../../agent/index.ts';
import { CodedError, isCode, messageOf } from '../../base/index.ts';
import { formatSource, listReadableSnapshots, type Snapshot } from '../../snapshot/index.ts';
import type { ClusterFlags } from '../cluster.ts';
import { openContext } from '../context.ts';
import { snapshotDocument } from '../output/snapshot-document.ts';
import { ExitCode } from '../exit.ts';
import { withClusterOptions } from '../cluster-options.ts';
import { isWide, withOutputForm } from '../output/format-options.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import type { Column } from '../output/table.ts';
import { printable, printJson, printTable } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';

const SHORT_ID_DIGITS = 8;
const COLUMNS: Column[] = [
  { title: 'ID', shorten: (id) => id.slice(0, SHORT_ID_DIGITS) },
  { title: 'SOURCE', min: 12, cut: 'start' },
  { title: 'TIME', leaveOut: 1 },
  { title: 'BACKUP', min: 10 },
  { title: 'HELD BY', min: 10 },
];

export function addSnapshots(group: Command): void {
  const example = 'longshore repository snapshots --repo s3://velero/kopia/shop/ -n velero';
  const command = verb(
    group,
    'snapshots',
    'list all snapshots with the Velero backup and the object that hold each, and those that nobody holds',
    example,
  );
  withOutputForm(withClusterOptions(command), { isTable: true })
    .option(
      '--unheld',
      'only snapshots without a known holder in this namespace; backups that were synced may need them',
    )
    .option(...JSON_OPTION)
    .action(list);
}

type SnapshotsFlags = ClusterFlags & { unheld?: boolean };

async function list(options: VerbOptions<SnapshotsFlags>): Promise<void> {
  await using context = await openContext(options);
  // Read snapshots before their holders. A newer object then only names a snapshot that is not
  // listed.
  const { snapshots, damaged } = await listReadableSnapshots(context.repository);
  const holders = await holdersIn(options);
  for (const { message } of damaged) process.stderr.write(`longshore: ${printable(message)}\n`);
  if (damaged.length > 0) process.exitCode = ExitCode.partly;
  if (holders.unread.length > 0) {
    const kinds = holders.unread.join(', ');
    process.stderr.write(
      `longshore: these cannot be read here, so that what they hold looks unheld: ${kinds}\n`,
    );
  }
  const rows = snapshots
    .map((snapshot) => ({ snapshot, holder: holders.of?.(snapshot) }))
    .filter(({ holder }) => options.unheld !== true || isUnheld(holder));
  if (options.unheld === true) assertKnown(holders, snapshots, options);
  if (options.json === true) {
    printJson(rows.map(({ snapshot, holder }) => documentOf(snapshot, holder)));
    return;
  }
  await printTable(
    COLUMNS,
    rows.map(({ snapshot, holder }) => [
      snapshot.id,
      formatSource(snapshot.source),
      timeText(snapshot.startTimeNs, options),
      backupText(holder),
      holderText(snapshot, holder),
    ]),
    { isWide: isWide(options) },
  );
}

/**
 * A backup of the same UID counts as a holder itself. A backup synced from the storage has another
 * UID, and is not known as a holder.
 */
const isHeld = ({ heldBy, isBackupThere }: SnapshotHolder): boolean =>
  heldBy !== undefined || isBackupThere;

/** Snapshots of other programs do not count: Velero's objects cannot hold them. */
const isUnheld = (holder: SnapshotHolder | undefined): boolean =>
  holder !== undefined && !holder.isForeign && !isHeld(holder);

/**
 * Refuses an unreliable result of `--unheld`: users may delete the listed snapshots, and with them
 * needed backups. Throws `HOLDERS_UNKNOWN`.
 */
function assertKnown(
  { of, unread }: Holders,
  snapshots: readonly Snapshot[],
  { namespace = '' }: SnapshotsFlags,
): void {
  const refuse = (text: string): never => {
    throw new CodedError('HOLDERS_UNKNOWN', `--unheld: ${text}`);
  };
  if (!of) return refuse('without a cluster it is not known what nobody holds');
  if (unread.length > 0) refuse(`what nobody holds is not known without ${unread.join(', ')}`);
  const ours = snapshots.map((snapshot) => of(snapshot)).filter(({ isForeign }) => !isForeign);
  if (ours.length > 0 && !ours.some(isHeld)) {
    refuse(
      `nothing in namespace ${namespace === '' ? 'of Velero' : namespace} holds any snapshot of this repository; is Velero there, and were its backups not synced from the storage?`,
    );
  }
}

interface Holders {
  readonly of: SnapshotHolders['of'] | undefined;
  readonly unread: readonly string[];
}

/** Without a cluster the snapshots are still listed. */
async function holdersIn(options: ClusterFlags): Promise<Holders> {
  const { loadSnapshotHolders } = await import('../../agent/index.ts');
  const { clusterOf } = await import('../cluster.ts');
  try {
    const { client, namespace } = clusterOf(options);
    try {
      return await loadSnapshotHolders(client, namespace);
    } finally {
      client.close();
    }
  } catch (error) {
    if (!isCode(error, 'NO_CLUSTER', 'KUBE_UNAVAILABLE')) throw error;
    process.stderr.write(
      `longshore: without a cluster it is not known who holds the snapshots: ${printable(messageOf(error))}\n`,
    );
    return { of: undefined, unread: [] };
  }
}

const documentOf = (snapshot: Snapshot, holder: SnapshotHolder | undefined): object =>
  snapshotDocument(snapshot, undefined, {
    backup: holder?.backup ?? null,
    isBackupThere: holder?.isBackupThere ?? null,
    heldBy: holder?.heldBy ?? null,
    isHeld: holder ? isHeld(holder) : null,
  });

function backupText(holder: SnapshotHolder | undefined): string {
  if (!holder) return 'not known';
  const { backup, isBackupThere } = holder;
  if (backup === undefined) return '-';
  return isBackupThere ? backup : `${backup} (gone)`;
}

function holderText({ pins }: Snapshot, holder: SnapshotHolder | undefined): string {
  if (!holder) return 'not known';
  if (holder.heldBy !== undefined) return holder.heldBy;
  if (holder.isBackupThere) return 'its backup';
  const pinned = pins && pins.length > 0 ? `; pinned: ${pins.join(', ')}` : '';
  return `${holder.isForeign ? 'nobody: not made for Velero' : 'nobody'}${pinned}`;
}
