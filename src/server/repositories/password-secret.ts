import { WELL_KNOWN_PASSWORD } from '../../archive/index.ts';
import { CodedError, isCode } from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type KubeClient,
  NOT_IN_BACKUPS,
  PASSWORD_SECRET,
  SECRETS,
} from '../../kube/index.ts';
import { PASSWORD_KEY } from '../../repository-access/index.ts';

/** Velero's own, by which another cluster finds the repositories of the same bucket too (pkg/repository/keys/keys.go). */
const FIRST_PASSWORD = WELL_KNOWN_PASSWORD;

/**
 * Makes the Secret with the password of all repositories, unless there is one: as Velero's server does at its start. Not where
 * repositories are in use already: their password was another one, and the one that everybody knows would be given to new ones.
 * Throws `NO_PASSWORD` there.
 */
export async function ensurePasswordSecret(
  client: KubeClient,
  namespace: string,
  { signal }: { signal?: AbortSignal } = {},
): Promise<void> {
  const ref = { namespace, name: PASSWORD_SECRET };
  if (await client.find(SECRETS, ref, { signal })) return;
  const found = await client.list(BACKUP_REPOSITORIES, { namespace, signal });
  const used = found.find(({ status }) => status?.lastMaintenanceTime != null);
  if (used) {
    const text = `Secret ${namespace}/${PASSWORD_SECRET} with the password of all repositories is gone, and ${used.metadata.name} is in use: create it again with the password that it had`;
    throw new CodedError('NO_PASSWORD', text);
  }
  const data = { [PASSWORD_KEY]: Buffer.from(FIRST_PASSWORD).toString('base64') };
  try {
    await client.create(
      SECRETS,
      { metadata: { ...ref, labels: NOT_IN_BACKUPS }, data },
      { signal },
    );
  } catch (error) {
    if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
  }
}
