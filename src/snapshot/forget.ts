import { CodedError } from '../base/index.ts';
import { type ManifestId, type Repository } from '../repository/index.ts';

/** Snapshots that are forgotten with one flush. Our choice: a kill in between leaves whole batches. */
const BATCH = 200;

export interface ForgetResult {
  readonly forgotten: readonly string[];
  /** Those that are not there: somebody has forgotten them before, as after a try whose end was not heard of. */
  readonly missing: readonly string[];
}

/**
 * Deletes the manifests of snapshots, many with each flush; full maintenance frees what they held. May be repeated: what an
 * earlier try has forgotten is `missing`. Throws `MANIFESTS_UNREADABLE` if they may only be
 * unreadable. After a failure of the storage, earlier batches are forgotten.
 */
export async function forgetSnapshots(
  repository: Repository,
  ids: readonly string[],
  { signal, batch = BATCH }: { signal: AbortSignal; batch?: number },
): Promise<ForgetResult> {
  const { manifests } = repository;
  const present = new Set<string>();
  for (const { id } of await manifests.find({ type: 'snapshot' })) present.add(id);
  const wanted = [...new Set(ids)];
  const missing = wanted.filter((id) => !present.has(id));
  if (missing.length > 0 && !(await manifests.areComplete())) throw listIncomplete(missing);
  const forgotten = wanted.filter((id) => present.has(id));
  for (let from = 0; from < forgotten.length; from += batch) {
    signal.throwIfAborted();
    for (const id of forgotten.slice(from, from + batch)) manifests.delete(id as ManifestId);
    await repository.flush();
  }
  return { forgotten, missing };
}

/** The snapshots may be in an unreadable part of the list. */
function listIncomplete([first = '']: readonly string[]): CodedError {
  const text = `snapshot ${first} was not found, but a part of the list of snapshots cannot be read, so it may still exist. Run "longshore repository repair"`;
  return new CodedError('MANIFESTS_UNREADABLE', text);
}
