import {
  type BackupLog,
  FineFilters,
  type FinePolicies,
  type ResourceFinder,
} from '../../backup/index.ts';
import { CodedError } from '../../base/index.ts';

const silent: BackupLog = {
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
};

/**
 * The filters of the policies that a Restore names, with what the cluster serves now. What does not
 * fit is said once all definitions are restored, to `log`. Throws `AMBIGUOUS_FILTERS` where one
 * policy names a kind by two names, as Velero does: it cannot be known which filter is meant.
 * Velero: pkg/restore/restore.go, resolveRestoreNamespacedFilterPolicies (v1.18.3).
 */
export function fineFiltersOf(
  policies: FinePolicies | undefined,
  resources: ResourceFinder,
  log: BackupLog = silent,
): FineFilters | undefined {
  const fine = policies && FineFilters.of(policies, resources, log);
  const [type] = fine?.ambiguous ?? [];
  if (type === undefined) return fine;
  throw new CodedError('AMBIGUOUS_FILTERS', `ambiguous policy: duplicate kind "${type}" detected`);
}
