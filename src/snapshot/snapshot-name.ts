import { CodedError, formatGoTime, namedFirst } from '../base/index.ts';
import type { ManifestId, Repository } from '../repository/index.ts';
import { SnapshotIds } from './snapshot-ids.ts';
import { listReadableSnapshots } from './snapshot-manifest.ts';
import { formatSource, type SourceInfo } from './source.ts';

const LATEST = /^latest(?:~(\d{1,9}))?$/;
const SHOWN_MAX = 5;

/** Whether the text means another snapshot after the next backup. */
export const isRelativeName = (text: string): boolean => LATEST.test(text);

/**
 * The snapshot for a user's text: an ID, a unique prefix of an ID, `latest`, or `latest~1` for the
 * snapshot before it. The latest is the complete snapshot with the latest start. Without `source`,
 * `latest` requires that there is only one source. Returns undefined for an unknown ID.
 * Throws `AMBIGUOUS_SNAPSHOT` and `SHORT_SNAPSHOT_ID`. For `latest`, throws `SNAPSHOT_NOT_FOUND` if
 * there are too few snapshots. If a later snapshot may be unreadable, throws `DAMAGED_SNAPSHOT` or
 * `MANIFESTS_UNREADABLE`.
 */
export async function findSnapshotId(
  repository: Repository,
  text: string,
  source?: SourceInfo,
): Promise<ManifestId | undefined> {
  const latest = LATEST.exec(text);
  if (latest) return latestId(repository, text, Number(latest[1] ?? 0), source);
  return new SnapshotIds(await repository.manifests.find({ type: 'snapshot' })).find(text)?.id;
}

async function latestId(
  repository: Repository,
  text: string,
  back: number,
  source: SourceInfo | undefined,
): Promise<ManifestId> {
  const { snapshots, damaged } = await listReadableSnapshots(repository, { source });
  const whole = snapshots.filter(({ incomplete, rootEntry }) => !incomplete && rootEntry);
  const sources = [...new Set(whole.map((snapshot) => formatSource(snapshot.source)))];
  if (sources.length > 1) {
    const shown = namedFirst(sources, SHOWN_MAX, (each) => each);
    throw new CodedError(
      'AMBIGUOUS_SNAPSHOT',
      `${text} exists in ${sources.length} sources: ${shown}; name one with --source`,
    );
  }
  const found = whole.at(-1 - back);
  await assertReadableSince(repository, found?.id, damaged, text);
  if (found) return found.id;
  const where = source ? ` of ${formatSource(source)}` : ' in the repository';
  const [oldest] = whole;
  const since = oldest ? `, the oldest of ${formatGoTime(oldest.startTimeNs).slice(0, 19)}Z` : '';
  throw new CodedError(
    'SNAPSHOT_NOT_FOUND',
    `there is no ${text}: complete snapshots${where}: ${whole.length}${since}`,
  );
}

/**
 * Throws if a damaged snapshot was written later, because it may be the wanted one. An older
 * snapshot must not replace it.
 */
async function assertReadableSince(
  { manifests }: Repository,
  found: ManifestId | undefined,
  damaged: readonly CodedError[],
  text: string,
): Promise<void> {
  const since = found && (await manifests.get(found)).modifiedNs;
  for (const error of damaged) {
    const { modifiedNs } = await manifests.get(String(error.facts.snapshot));
    if (since === undefined || modifiedNs > since) throw error;
  }
  const unreadableNs = await manifests.lastUnreadableNs();
  if (unreadableNs === undefined || (since !== undefined && since > unreadableNs)) return;
  const why = `a part of the list of snapshots cannot be read, and "${text}" may be in that part`;
  const advice = 'name the snapshot by its ID, or run "longshore repository repair"';
  throw new CodedError('MANIFESTS_UNREADABLE', `${why}: ${advice}`);
}
