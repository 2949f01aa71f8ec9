import { formatGoTime, type Logger, messageOf } from '../base/index.ts';
import {
  CLOCK_SKEW_NS_MAX,
  clockSkew,
  type ManifestId,
  type Repository,
} from '../repository/index.ts';
import {
  expiredSnapshots,
  listReadableSnapshots,
  loadPolicyTree,
  type Snapshot,
  type SourceInfo,
} from '../snapshot/index.ts';

/**
 * Deletes the snapshots of the source that its policy no longer keeps; durable after a flush. The
 * policy is the one of now: it may have changed since a long backup began. Nothing is deleted by a
 * clock that differs from the storage's: one that is ahead makes every snapshot old.
 */
export async function applyRetention(
  repository: Repository,
  source: SourceInfo,
  justMade: ManifestId,
  logger: Logger,
): Promise<Snapshot[]> {
  if (!(await isListComplete(repository, logger))) return [];
  const { root } = await loadPolicyTree(repository, source);
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const moment = { nowNs: repository.clock.nowNs(), justMade };
  const expired = expiredSnapshots(snapshots, root.retention, moment);
  if (expired.length === 0 || !(await isClockRight(repository, logger))) return [];
  for (const { id } of expired) repository.manifests.delete(id);
  return expired;
}

/**
 * Whether all policies and snapshots could be read, and warns if not: a missing policy may keep
 * more.
 */
export async function isListComplete({ manifests }: Repository, logger: Logger): Promise<boolean> {
  if (await manifests.areComplete()) return true;
  logger.warn(
    {},
    'no snapshot was removed by policy: a part of the policies and snapshots cannot be read; run "longshore repository repair"',
  );
  return false;
}

/**
 * Compares the clock with the time of a blob that is put for this, and warns when they differ too
 * much.
 */
export async function isClockRight(
  { contents, clock }: Repository,
  logger: Logger,
): Promise<boolean> {
  try {
    const storage = await contents.storageTime();
    const here = clock.nowNs();
    if (clockSkew(here, storage) <= CLOCK_SKEW_NS_MAX) return true;
    logger.warn(
      { here: formatGoTime(here), storage: formatGoTime(storage) },
      `no snapshot was removed by policy: this machine's clock says ${formatGoTime(here)}, the storage's ${formatGoTime(storage)}; correct the clock`,
    );
  } catch (error) {
    const text = "no snapshot was removed by policy: the storage's time is not known";
    logger.warn({ error: messageOf(error) }, text);
  }
  return false;
}
