import { formatGoTime, type Logger, messageOf } from '../../base/index.ts';
import type { Repository } from '../../repository/index.ts';
import {
  effectivePolicies,
  formatSource,
  listPolicies,
  retentionReasons,
  type Snapshot,
  USER_TAG_PREFIX,
} from '../../snapshot/index.ts';
import { type TimeFlags, timeText } from '../output/time-text.ts';

/**
 * The reasons of the sources' policies for keeping snapshots, by snapshot id. `snapshots` must
 * contain all snapshots of each source. An unreadable policy gives no reasons, but the snapshots
 * are still listed.
 */
export async function loadRetentionReasons(
  repository: Repository,
  snapshots: readonly Snapshot[],
  logger: Logger,
): Promise<ReadonlyMap<string, readonly string[]>> {
  const reasons = new Map<string, readonly string[]>();
  const warn = (error: unknown): void => {
    logger.warn({ error: messageOf(error) }, 'cannot read the policies');
  };
  const policies = await listPolicies(repository).catch(warn);
  if (!policies) return reasons;
  const policyOf = effectivePolicies(policies);
  const moment = { nowNs: repository.clock.nowNs() };
  for (const group of Map.groupBy(snapshots, ({ source }) => formatSource(source)).values()) {
    const [first] = group;
    if (!first) continue;
    try {
      const found = retentionReasons(group, policyOf(first.source).retention, moment);
      for (const [id, list] of found) reasons.set(id, list);
    } catch (error) {
      warn(error);
    }
  }
  return reasons;
}

/** For people: reasons and pins of one snapshot. */
export function describeReasons(
  { pins = [] }: Snapshot,
  reasons: readonly string[] | undefined,
): string {
  if (!reasons) return '?';
  const all = [...reasons, ...pins.map((pin) => `pin ${pin}`)];
  return all.length > 0
    ? all.join(', ')
    : 'nothing: it is removed after the next snapshot of its source';
}

/** The snapshots that `snapshot create` removed, for `--json`. */
export const removedDocuments = (removed: readonly Snapshot[]): object[] =>
  removed.map(({ id, startTimeNs, incomplete, tags }) => ({
    id,
    startTime: formatGoTime(startTimeNs),
    incomplete: incomplete ?? null,
    tags: tags ?? {},
  }));

/** The removed snapshots, as lines for people. */
export function removedLines(removed: readonly Snapshot[], flags: TimeFlags): string[] {
  if (removed.length === 0) return [];
  const lines = removed.map(({ id, startTimeNs, tags }) => {
    const own = Object.entries(tags ?? {})
      .filter(([key]) => key.startsWith(USER_TAG_PREFIX))
      .map(([key, value]) => ` ${key.slice(USER_TAG_PREFIX.length)}=${value}`);
    return `    ${id} of ${timeText(startTimeNs, flags)}${own.join('')}`;
  });
  return [`  removed ${removed.length} by policy:`, ...lines];
}
