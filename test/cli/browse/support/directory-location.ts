import { BACKUP_STORAGE_LOCATIONS, SECRETS } from '../../../../src/kube/index.ts';
import type { FakeApi } from '../../../server/page/support/fake-api.ts';

/** The location `default` is a directory, and all repositories in it have this password. */
export function putDirectoryLocation(api: FakeApi, fspath: string, password: string): void {
  api.put(SECRETS, {
    metadata: { name: 'velero-repo-credentials' },
    data: { 'repository-password': Buffer.from(password).toString('base64') },
  });
  api.put(BACKUP_STORAGE_LOCATIONS, {
    metadata: { name: 'default' },
    spec: { provider: 'velero.io/fs', config: { fspath }, objectStorage: { bucket: 'b' } },
    status: { phase: 'Available' },
  });
}
