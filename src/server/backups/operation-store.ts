import { BackupArchive, RestoreArchive } from '../../archive/index.ts';
import { CodedError } from '../../base/index.ts';
import { archiveStore, type OperationStore, type Subject } from '../../item-operations/index.ts';
import { BACKUPS, type KubeClient } from '../../kube/index.ts';
import type { Buckets } from './contract.ts';

/** Operations files in the bucket of each Backup's location. Opens the bucket for each call. */
export function backupOperationStore(
  client: Pick<KubeClient, 'find'>,
  namespace: string,
  buckets: Buckets,
): OperationStore {
  const locationOf = async (
    { name, uid }: Pick<Subject, 'name' | 'uid'>,
    signal: AbortSignal | undefined,
  ): Promise<string> => {
    const backup = await client.find(BACKUPS, { namespace, name }, { signal });
    const { storageLocation } =
      (backup as { spec?: { storageLocation?: string } } | undefined)?.spec ?? {};
    if (storageLocation && backup?.metadata.uid === uid) return storageLocation;
    const text = `Backup ${namespace}/${name}, which the operations are of, is not there any more`;
    throw new CodedError('NO_BACKUP', text);
  };
  const within = async <T>(
    { name, uid, location }: Subject,
    signal: AbortSignal | undefined,
    task: (store: OperationStore) => Promise<T>,
  ): Promise<T> => {
    const storageLocation = location ?? (await locationOf({ name, uid }, signal));
    await using opened = await buckets.open(
      storageLocation,
      signal ?? new AbortController().signal,
    );
    const backups = new BackupArchive(opened.bucket);
    const restores = new RestoreArchive(opened.bucket);
    return await task(archiveStore(() => Promise.resolve({ backups, restores })));
  };
  return {
    load: (subject, signal) => within(subject, signal, (store) => store.load(subject, signal)),
    save: (subject, operations, signal) =>
      within(subject, signal, (store) => store.save(subject, operations, signal)),
  };
}
