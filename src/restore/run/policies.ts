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
 * The filters of a Restore's policies, for the types that the cluster serves now. Mismatches go to
 * `log`, once all definitions are restored. Throws `AMBIGUOUS_FILTERS` if one policy names a kind
 * twice, as Velero does. Velero: pkg/restore/restore.go, resolveRestoreNamespacedFilterPolicies
 * (v1.18.3).
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
