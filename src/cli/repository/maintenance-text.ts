import { formatBytes, lookup } from '../../base/index.ts';
import type { MaintenanceReport } from '../../repository/index.ts';
import { countOf } from '../output/numbers.ts';

type Task = MaintenanceReport['tasks'][number];
type Stats = NonNullable<Task['stats']>;

const NAMES: Readonly<Record<string, string>> = {
  'snapshot-gc': 'collecting garbage',
  'full-rewrite-contents': 'rewriting short packs',
  'quick-rewrite-contents': 'rewriting short packs',
  'full-drop-deleted-content': 'dropping deleted contents from the index',
  'full-delete-blobs': 'deleting packs',
  'quick-delete-blobs': 'deleting packs',
  'extend-blob-retention-time': 'extending object locks',
};

/** The result of a run for people: a line for each task that did something or was skipped. */
export function maintenanceLines({ mode, dryRun, tasks }: MaintenanceReport): string[] {
  if (mode === 'none') return ['nothing is due yet'];
  const left = tasks.flatMap(({ task, skipped }) =>
    skipped === undefined ? [] : [`not now: ${lookup(NAMES, task) ?? task} (${skipped})`],
  );
  const done = tasks.flatMap(({ task, stats, skipped }) =>
    skipped === undefined ? (lookup(WORDS, task)?.(stats ?? {}, dryRun) ?? []) : [],
  );
  const all = [...done, ...left];
  if (done.length === 0) all.unshift(`${mode} maintenance found nothing to do`);
  return dryRun ? [...all, 'dry run: nothing was changed'] : all;
}

type Words = (stats: Stats, dryRun: boolean) => string[];

const numberOf = (stats: Stats, key: string): number => {
  const value = lookup(stats, key);
  return typeof value === 'number' ? value : 0;
};

function amount(count: number, noun: string, bytes?: number): string {
  const what = countOf(count, `${noun}s`);
  return bytes === undefined ? what : `${what}, ${formatBytes(bytes)}`;
}

const verbOf = (past: string, infinitive: string, dryRun: boolean): string =>
  dryRun ? `would ${infinitive}` : past;

const rewritten: Words = (stats, dryRun) => {
  const kind = dryRun ? 'toRewrite' : 'rewritten';
  const count = numberOf(stats, `${kind}ContentCount`);
  if (count === 0) return [];
  const what = amount(count, 'content', numberOf(stats, `${kind}ContentSize`));
  return [`${verbOf('rewrote', 'rewrite', dryRun)} ${what} from short packs`];
};

const packsDeleted: Words = (stats, dryRun) => {
  const [name, less] = dryRun ? ['unreferenced', 'retained'] : ['deleted', 'none'];
  const count = numberOf(stats, `${name}PackCount`) - numberOf(stats, `${less}PackCount`);
  const bytes = numberOf(stats, `${name}TotalSize`) - numberOf(stats, `${less}TotalSize`);
  const lines: string[] = [];
  if (count > 0)
    lines.push(`${verbOf('deleted', 'delete', dryRun)} ${amount(count, 'pack', bytes)}`);
  const kept = numberOf(stats, 'retainedPackCount');
  if (kept > 0) {
    const what = amount(kept, 'pack', numberOf(stats, 'retainedTotalSize'));
    lines.push(`kept ${what} that nothing refers to, but that are too young to delete`);
  }
  return lines;
};

/** A line with count and size, if the count is not 0. */
const counted =
  (
    past: string,
    infinitive: string,
    noun: string,
    keys: readonly [count: string, size?: string],
  ): Words =>
  (stats, dryRun) => {
    const count = numberOf(stats, keys[0]);
    if (count === 0) return [];
    const bytes = keys[1] === undefined ? undefined : numberOf(stats, keys[1]);
    return [`${verbOf(past, infinitive, dryRun)} ${amount(count, noun, bytes)}`];
  };

const WORDS: Readonly<Record<string, Words>> = {
  'snapshot-gc': (stats, dryRun) => [
    ...counted('collected', 'collect', 'content', ['deletedContentCount', 'deletedContentSize'])(
      stats,
      dryRun,
    ),
    ...counted('recovered', 'recover', 'content', [
      'recoveredContentCount',
      'recoveredContentSize',
    ])(stats, dryRun),
  ],
  'full-rewrite-contents': rewritten,
  'quick-rewrite-contents': rewritten,
  'full-delete-blobs': packsDeleted,
  'quick-delete-blobs': packsDeleted,
  'full-drop-deleted-content': (_, dryRun) => [
    `${verbOf('dropped', 'drop', dryRun)} deleted contents from the index that are old enough`,
  ],
  'compact-single-epoch': counted('merged', 'merge', 'index blob', [
    'supersededIndexBlobCount',
    'supersededIndexTotalSize',
  ]),
  'advance-epoch': ({ wasAdvanced }, dryRun) =>
    wasAdvanced === true ? [`${verbOf('began', 'begin', dryRun)} a new epoch of index blobs`] : [],
  'generate-epoch-range-index': ({ rangeMinEpoch, rangeMaxEpoch }, dryRun) =>
    rangeMinEpoch === undefined
      ? []
      : [
          `${verbOf('merged', 'merge', dryRun)} the indexes of epochs ${rangeMinEpoch} to ${rangeMaxEpoch ?? '?'}`,
        ],
  'delete-superseded-epoch-indexes': counted('deleted', 'delete', 'index blob', [
    'deletedBlobCount',
    'deletedTotalSize',
  ]),
  'cleanup-epoch-markers': counted('deleted', 'delete', 'epoch marker', [
    'deletedEpochMarkerBlobCount',
  ]),
  'cleanup-logs': counted('deleted', 'delete', 'log', ['toDeleteBlobCount', 'toDeleteBlobSize']),
  'extend-blob-retention-time': counted('extended the locks of', 'extend the locks of', 'blob', [
    'toExtendBlobCount',
  ]),
  'cleanup-unfinished-puts': counted('removed', 'remove', 'unfinished file', [
    'toDeleteFileCount',
    'toDeleteFileSize',
  ]),
  'adopt-late-indexes': counted('rewrote', 'rewrite', 'late index blob', ['adoptedBlobCount']),
  'restore-manifest-deletions': counted('deleted again', 'delete again', 'manifest', [
    'restoredManifestCount',
  ]),
  'index-compaction': (_, dryRun) => [`${verbOf('compacted', 'compact', dryRun)} the index`],
};
