import { CodedError, isCode, type Logger } from '../../base/index.ts';
import type { StorageKind } from '../../config/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadRepositoryAccess } from '../../repository-access/index.ts';
import type { DeletionFailures } from './deletion-failures.ts';
import type { ForgetSnapshots } from './contract.ts';
import { within } from './call-time-limit.ts';

/** Time limit for one repository. Our choice: the largest index loads in minutes. */
const FORGETTING_MS_MAX = 60 * 60_000;

export interface RepositoryPlace {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly storageLocation: string;
  /** Credentials are written there. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
}

export interface ForgetOptions extends RepositoryPlace {
  readonly forget: ForgetSnapshots;
  readonly mayForget: Parameters<ForgetSnapshots>[2]['mayForget'];
  readonly attempts: DeletionFailures;
  readonly logger: Logger;
  readonly backup: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
  readonly onGivenUp: (text: string) => void;
}

/**
 * Deletes the snapshots of a backup from the repositories of its location. The repositories take
 * turns, and each is opened once. If a repository is gone, its snapshots are gone too.
 */
export async function forgetMoved(
  repositories: ReadonlyMap<string, ReadonlySet<string>>,
  options: ForgetOptions,
): Promise<void> {
  const { attempts, storageLocation, signal } = options;
  for (const [volumeNamespace, ids] of repositories) {
    signal.throwIfAborted();
    const what = `error deleting moved snapshot data: ${ids.size === 1 ? 'one snapshot' : `${ids.size} snapshots`} in the repository of namespace ${volumeNamespace} at backup storage location ${storageLocation}`;
    await attempts.attempt(what, () => forgetIn(volumeNamespace, [...ids], options));
  }
}

async function forgetIn(
  volumeNamespace: string,
  ids: readonly string[],
  options: ForgetOptions,
): Promise<void> {
  const { forget, mayForget, logger, backup, assertLeading, signal, ...place } = options;
  const access = await loadRepositoryAccess({
    ...place,
    volumeNamespace,
    isWriting: true,
    signal,
  });
  if (access.isChangingPassword) throw changing();
  assertLeading();
  const fields = { backup, volumeNamespace };
  try {
    const { forgotten, missing } = await within(signal, FORGETTING_MS_MAX, (own) =>
      forget(access, ids, { signal: own, mayForget }),
    );
    const counts = { forgotten: forgotten.length, missing: missing.length };
    logger.info({ ...fields, ...counts }, 'snapshots of a deleted backup are forgotten');
  } catch (error) {
    if (!isCode(error, 'NOT_A_REPOSITORY', 'STORAGE_NOT_FOUND')) throw error;
    options.onGivenUp(
      `there is no repository of namespace ${volumeNamespace} at backup storage location ${options.storageLocation}: its snapshots of this backup are gone with it, unless it lies where the location does not point to any more`,
    );
  }
}

const changing = (): CodedError =>
  new CodedError(
    'PASSWORD_CHANGE_UNDER_WAY',
    'the password of all repositories is being changed: nothing is opened before that has ended',
    { retry: 'backoff' },
  );
