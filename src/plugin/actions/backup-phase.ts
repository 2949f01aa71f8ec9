import { isCode } from '../../base/index.ts';
import { type Backup, BACKUP_UID, BACKUPS, type KubeObject } from '../../kube/index.ts';
import type { Setting } from './setting.ts';
import { CANCEL_ANNOTATION, FOR_BACKUP, MADE_BY_ANNOTATION, MOVED } from './velero-names.ts';

export const DELETED = 'Deleted';

/** Our choice: whoever asks is about to end. */
const LOOK_MS = 10_000;

/** What an object says it was taken for. */
export interface Purpose {
  readonly uid: string;
  readonly backup: string;
  readonly isMoved: boolean;
}

/** Null for one of another server, or that does not say. */
export function purposeOf({ metadata }: KubeObject, ofServer: string): Purpose | null {
  const uid = metadata.labels?.[BACKUP_UID] ?? '';
  const [namespace, backup = ''] = metadata.annotations?.[FOR_BACKUP]?.split('/') ?? [];
  const isMoved = metadata.labels?.[MOVED] === 'true';
  return uid !== '' && backup !== '' && namespace === ofServer ? { uid, backup, isMoved } : null;
}

/**
 * {@link DELETED} for one that is gone, or that is another one of that name. Throws
 * `KUBE_NOT_FOUND` where the API server does not know the kind: nobody has deleted it then.
 */
export async function phaseOf(
  { client }: Setting,
  ref: { readonly namespace: string; readonly name: string },
  uid: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const phaseIn = (backup: Backup | undefined): string | undefined =>
    backup?.metadata.uid === uid ? backup.status?.phase : DELETED;
  try {
    return phaseIn((await client.get(BACKUPS, ref, { signal })) as Backup);
  } catch (error) {
    if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    const { namespace, name } = ref;
    const fieldSelector = `metadata.name=${name}`;
    const [backup] = await client.list(BACKUPS, { namespace, fieldSelector, signal });
    return phaseIn(backup as Backup | undefined);
  }
}

/**
 * Whether another server goes on with a backup whose process ends, and with what this one has made
 * for it: a backup of our server that runs, and that nobody has canceled. In doubt one does.
 */
export async function goesOn({ client }: Setting, { metadata }: Backup): Promise<boolean> {
  const { namespace, name, uid, annotations } = metadata;
  if (annotations?.[MADE_BY_ANNOTATION] === undefined) return false;
  try {
    const signal = AbortSignal.timeout(LOOK_MS);
    const now = (await client.get(BACKUPS, { namespace, name }, { signal })) as Backup;
    const isWanted = (now.metadata.annotations?.[CANCEL_ANNOTATION] ?? '') === '';
    return now.metadata.uid === uid && now.status?.phase === 'InProgress' && isWanted;
  } catch (error) {
    return !isCode(error, 'KUBE_NOT_FOUND');
  }
}
