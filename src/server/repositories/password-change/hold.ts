import { isCode } from '../../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type KubeClient,
  type ObjectRef,
} from '../../../kube/index.ts';
import { annotate } from '../repository-writer.ts';

/**
 * On a BackupRepository whose password is being changed: the phase that it had. Its phase is `New`
 * meanwhile, so that data movers and servers, ours and Velero's, wait for it as for one that was
 * just made (Velero: up to `--resource-timeout`, pkg/repository/ensurer.go), and fail only when
 * that takes too long. Our server leaves it alone as long as the annotation is there.
 */
export const HOLD = 'longshore.io/password-change';

const MESSAGE =
  'held while the passwords of all repositories are changed (longshore repository change-password-all; run it again if it was killed)';
/** Others write too: progress of maintenance, annotations. Our choice. */
const ATTEMPTS_MAX = 10;

export const isHeld = ({ metadata }: BackupRepository): boolean =>
  metadata.annotations?.[HOLD] !== undefined;

/**
 * Whether somebody else has let others in meanwhile: a Velero server whose controller backup-repo
 * runs.
 */
export const isLifted = (repository: BackupRepository): boolean =>
  isHeld(repository) && repository.status?.phase === 'Ready';

/** May be repeated. False where it is gone. */
export const hold = (client: KubeClient, ref: ObjectRef, signal: AbortSignal): Promise<boolean> =>
  change(client, ref, signal, (draft) => {
    const phase = draft.status?.phase ?? '';
    if (!isHeld(draft)) annotate(draft, HOLD, phase === '' ? 'New' : phase);
    // What is not ready stays so: nobody uses it.
    if (phase === 'Ready') draft.status = { ...draft.status, phase: 'New', message: MESSAGE };
  });

/**
 * Gives back the phase that it had. One that was ready is so again, whatever others have found
 * while the Secret had the other password.
 */
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

/** With the version that was read, as often as others write in between. */
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
