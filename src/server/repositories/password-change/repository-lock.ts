import { isCode } from '../../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type KubeClient,
  type ObjectRef,
} from '../../../kube/index.ts';
import { annotate } from '../repository-writer.ts';

/**
 * Annotation on a BackupRepository during a password change: its phase before. Meanwhile its phase
 * is `New`, so data movers and servers wait as for a new repository. Velero waits up to
 * `--resource-timeout` (pkg/repository/ensurer.go). Our server skips an annotated repository.
 */
export const HOLD = 'longshore.io/password-change';

const MESSAGE =
  'held while the passwords of all repositories are changed (longshore repository change-password-all; run it again if it was killed)';
/** Other programs write it too: progress of maintenance, annotations. Our choice. */
const ATTEMPTS_MAX = 10;

export const isHeld = ({ metadata }: BackupRepository): boolean =>
  metadata.annotations?.[HOLD] !== undefined;

/** Whether another program set it to Ready, such as Velero's controller backup-repo. */
export const isLifted = (repository: BackupRepository): boolean =>
  isHeld(repository) && repository.status?.phase === 'Ready';

/** May be repeated. False if the repository does not exist. */
export const hold = (client: KubeClient, ref: ObjectRef, signal: AbortSignal): Promise<boolean> =>
  change(client, ref, signal, (draft) => {
    const phase = draft.status?.phase ?? '';
    if (!isHeld(draft)) annotate(draft, HOLD, phase === '' ? 'New' : phase);
    // A repository that is not ready has no users.
    if (phase === 'Ready') draft.status = { ...draft.status, phase: 'New', message: MESSAGE };
  });

/** Restores the earlier phase: Ready stays Ready, even if others failed to open it meanwhile. */
export const release = (
  client: KubeClient,
  ref: ObjectRef,
  signal: AbortSignal,
): Promise<boolean> =>
  change(client, ref, signal, (draft) => {
    const before = draft.metadata.annotations?.[HOLD];
    annotate(draft, HOLD, undefined);
    if (before === 'Ready') draft.status = { ...draft.status, phase: 'Ready', message: '' };
  });

/** Writes over the version that was read, and retries conflicts. */
async function change(
  client: KubeClient,
  ref: ObjectRef,
  signal: AbortSignal,
  apply: (draft: BackupRepository) => void,
): Promise<boolean> {
  for (let attempt = 1; ; attempt++) {
    const found = await client.find(BACKUP_REPOSITORIES, ref, { signal });
    if (!found) return false;
    const draft = structuredClone(found);
    apply(draft);
    if (JSON.stringify(draft) === JSON.stringify(found)) return true;
    try {
      await client.replace(BACKUP_REPOSITORIES, draft, { signal });
      return true;
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return false;
      if (!isCode(error, 'KUBE_CONFLICT') || attempt >= ATTEMPTS_MAX) throw error;
    }
  }
}
