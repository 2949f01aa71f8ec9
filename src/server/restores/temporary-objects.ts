import { isCode } from '../../base/index.ts';
import { CONFIG_MAPS, type KubeClient, validLabel } from '../../kube/index.ts';
import type { Restore } from '../../restore/index.ts';

/**
 * Removes what a restore has put into the cluster for its own use alone: a ConfigMap for each DataUpload of its backup, which the actions of its PVCs
 * read. Nobody needs them once all items are restored, however it ends. May be repeated. Throws what the API server throws. Velero: pkg/restore/restore.go,
 * deletes them at the end of the run, and leaves them where that fails or the server is killed.
 */
export async function removeTemporaryObjects(
  client: Pick<KubeClient, 'list' | 'delete'>,
  { metadata: { namespace, uid } }: Restore,
  { signal, assertLeading }: { signal: AbortSignal; assertLeading: () => void },
): Promise<void> {
  const labels = [
    `velero.io/restore-uid=${validLabel(uid)}`,
    'velero.io/resource-usage=DataUpload',
  ];
  const labelSelector = labels.join(',');
  for (const { metadata } of await client.list(CONFIG_MAPS, { namespace, labelSelector, signal })) {
    assertLeading();
    try {
      await client.delete(CONFIG_MAPS, metadata, { uid: metadata.uid, signal });
    } catch (error) {
      // Somebody was faster, or another one has the name.
      if (!isCode(error, 'KUBE_NOT_FOUND', 'KUBE_CONFLICT')) throw error;
    }
  }
}
