import type { Logger } from '../base/index.ts';
import type { Repository } from '../repository/index.ts';
import {
  effectivePolicies,
  expiredSnapshots,
  formatSource,
  listPolicies,
  listReadableSnapshots,
  type Snapshot,
  type SourceInfo,
} from '../snapshot/index.ts';
import { isClockRight, isListComplete } from './apply-retention.ts';

export interface ExpireOptions {
  /** Limits it to this source. */
  readonly source?: SourceInfo | undefined;
  readonly dryRun: boolean;
  readonly logger: Logger;
}

/**
 * Deletes and logs snapshots that the policies of their sources no longer keep. Durable after a
 * flush. With `dryRun` it only logs. Deletes nothing if the clock is wrong. Throws
 * `DAMAGED_POLICY`.
 */
export async function expireSnapshots(
  repository: Repository,
  { source, dryRun, logger }: ExpireOptions,
): Promise<Snapshot[]> {
  const policyOf = effectivePolicies(await listPolicies(repository));
  const { snapshots } = await listReadableSnapshots(repository, { source });
  const moment = { nowNs: repository.clock.nowNs() };
  const groups = Map.groupBy(snapshots, (snapshot) => formatSource(snapshot.source)).values();
  const expired = [...groups].flatMap((group) => {
    const [first] = group;
    return first ? expiredSnapshots(group, policyOf(first.source).retention, moment) : [];
  });
  if (dryRun || expired.length === 0) return expired;
  if (!(await isListComplete(repository, logger))) return [];
  if (!(await isClockRight(repository, logger))) return [];
  for (const { id } of expired) repository.manifests.delete(id);
  return expired;
}
