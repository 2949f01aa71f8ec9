import type { Command } from 'commander';
import { formatBytes, lookup } from '../../base/index.ts';
import {
  formatSource,
  listReadableSnapshots,
  type Snapshot,
  SnapshotIds,
  USER_TAG_PREFIX,
} from '../../snapshot/index.ts';
import { openContext } from '../context.ts';
import { snapshotDocument } from '../output/snapshot-document.ts';
import { ExitCode } from '../exit.ts';
import { isWide, withOutputForm } from '../output/format-options.ts';
import { collectPairs, JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { describeReasons, loadRetentionReasons } from './retention.ts';
import { sourceOf } from './names.ts';
import type { Column } from '../output/table.ts';
import { printable, printId, printJson, printTable } from '../output/terminal.ts';
import { timeText } from '../output/time-text.ts';

/** Length of IDs on a narrow terminal, unless more digits are needed to tell them apart. */
const SHORT_ID_DIGITS = 8;

const columns = (digits: number): Column[] => [
  { title: 'ID', shorten: (id) => id.slice(0, digits) },
  { title: 'SOURCE', min: 12, cut: 'start' },
  { title: 'TIME' },
  { title: 'SIZE' },
  { title: 'FILES', leaveOut: 2 },
  { title: 'ROOT', leaveOut: 3 },
  { title: 'KEPT BY', min: 10, leaveOut: 1 },
  { title: 'NOTE', min: 10 },
];

interface ListOptions {
  source?: string;
  tag?: Record<string, string>;
  all?: boolean;
}

export function addList(group: Command): void {
  const example = 'longshore snapshot list --repo /backup/repo --source me@host:/data';
  const command = verb(group, 'list', 'list snapshots, oldest first', example);
  withOutputForm(command, { isTable: true })
    .option(
      '--source <source>',
      'only snapshots of this source: user@host:/path, or a path of this client',
    )
    .option('--tag <key=value>', 'only snapshots with this tag; may be repeated', collectPairs)
    .option('--all', 'include incomplete snapshots')
    .option(...JSON_OPTION)
    .action(list);
}

async function list(options: VerbOptions<ListOptions>): Promise<void> {
  await using context = await openContext(options);
  const { snapshots: found, damaged } = await listReadableSnapshots(context.repository, {
    source: sourceOf(context.repository, options),
  });
  for (const { message } of damaged) process.stderr.write(`longshore: ${printable(message)}\n`);
  if (damaged.length > 0) process.exitCode = ExitCode.partly;
  const wanted = Object.entries(options.tag ?? {});
  const snapshots = found
    .filter(({ incomplete }) => options.all === true || !incomplete)
    // Kopia's command line writes tags with a prefix, Velero without.
    .filter(({ tags }) =>
      wanted.every(
        ([key, value]) =>
          lookup(tags, key) === value || lookup(tags, USER_TAG_PREFIX + key) === value,
      ),
    );
  const reasons = await loadRetentionReasons(context.repository, found, context.logger);
  if (options.json === true) {
    printJson(
      snapshots.map((snapshot) => {
        const retentionReasons = reasons.get(snapshot.id) ?? null;
        return snapshotDocument(snapshot, undefined, { retentionReasons });
      }),
    );
    return;
  }
  if (options.quiet === true) {
    for (const { id } of snapshots) printId(id);
    return;
  }
  const ids = new SnapshotIds(await context.repository.manifests.find({ type: 'snapshot' }));
  const digits = ids.digitsToTellApart(SHORT_ID_DIGITS);
  await printTable(
    columns(digits),
    snapshots.map((snapshot) => {
      const { id, source, startTimeNs, stats, rootEntry, incomplete } = snapshot;
      return [
        id,
        formatSource(source),
        timeText(startTimeNs, options),
        formatBytes(stats.totalSize),
        String(rootEntry?.summary?.files ?? 1),
        rootEntry?.objectId ?? '-',
        describeReasons(snapshot, reasons.get(id)),
        noteOf(incomplete, stats),
      ];
    }),
    { isWide: isWide(options) },
  );
}

function noteOf(incomplete: string | undefined, stats: Snapshot['stats']): string {
  const { errorCount, ignoredErrorCount } = stats;
  const notes = [
    incomplete ?? '',
    errorCount > 0 ? `${errorCount} not read` : '',
    ignoredErrorCount > 0 ? `${ignoredErrorCount} not read, ignored` : '',
  ];
  return notes.filter((note) => note !== '').join(', ');
}
