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
 * Deletes the source's snapshots that its policy no longer keeps. Durable after a flush. Loads the
 * current policy: it may have changed during a long backup. Deletes nothing if the clock differs
 * from the storage's, because a clock that is ahead makes every snapshot look old.
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

/** Warns if a policy or snapshot is unreadable: a missing policy might keep more. */
export async function isListComplete({ manifests }: Repository, logger: Logger): Promise<boolean> {
  if (await manifests.areComplete()) return true;
  logger.warn(
    {},
    'no snapshot was removed by policy: a part of the policies and snapshots cannot be read; run "longshore repository repair"',
  );
  return false;
}

/** Compares the clock with the time of a test blob. Warns if they differ too much. */
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
