import { isCode } from '../../base/index.ts';
import { type Backup, BACKUP_UID, BACKUPS, type KubeObject } from '../../kube/index.ts';
import type { Setting } from './settings.ts';
import { CANCEL_ANNOTATION, FOR_BACKUP, MADE_BY_ANNOTATION, MOVED } from './velero-names.ts';

export const DELETED = 'Deleted';

/** Our choice: the calling process is about to end. */
const LOOK_MS = 10_000;

/** Purpose of an object, from its labels and annotations. */
export interface Purpose {
  readonly uid: string;
  readonly backup: string;
  readonly isMoved: boolean;
}

/** Null for an object of another server, or without a purpose. */
export function purposeOf({ metadata }: KubeObject, ofServer: string): Purpose | null {
  const uid = metadata.labels?.[BACKUP_UID] ?? '';
  const [namespace, backup = ''] = metadata.annotations?.[FOR_BACKUP]?.split('/') ?? [];
  const isMoved = metadata.labels?.[MOVED] === 'true';
  return uid !== '' && backup !== '' && namespace === ofServer ? { uid, backup, isMoved } : null;
}

/**
 * The phase of the Backup with this UID, or {@link DELETED} if it does not exist. Throws
 * `KUBE_NOT_FOUND` if the API server does not know the kind: then the backup was not deleted.
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
 * Whether another server continues this backup, and uses its objects, after this process ends. True
 * for a running backup of our server without a cancel request, and if unknown.
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
