import { isCode } from '../../base/index.ts';
import { type KubeClient, SECRETS } from '../../kube/index.ts';
import { PASSWORD_KEY, PASSWORD_SECRET } from '../../repository-access/index.ts';

/** Velero's own, by which another cluster finds the repositories of the same bucket too (pkg/repository/keys/keys.go). */
const FIRST_PASSWORD = 'static-passw0rd';

/** Makes the Secret with the password of all repositories, unless there is one: as Velero's server does at its start. */
export async function ensurePasswordSecret(
  client: KubeClient,
  namespace: string,
  { signal }: { signal?: AbortSignal } = {},
): Promise<void> {
  const ref = { namespace, name: PASSWORD_SECRET };
  if (await client.find(SECRETS, ref, { signal })) return;
  const data = { [PASSWORD_KEY]: Buffer.from(FIRST_PASSWORD).toString('base64') };
  try {
    await client.create(SECRETS, { metadata: ref, data }, { signal });
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
  }
}
