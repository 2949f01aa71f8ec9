import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { makeProdRepository, writeData } from './own-repository.ts';
import { removeBackups } from './prepared.ts';

/** The places of the servers that stand for the clouds' own services. */
export interface OtherStores {
  /** Stands for the page's location below `backups/cluster-1/`. */
  readonly azure: string;
  readonly google: string;
  readonly azureKey: string;
}

export function storagePage(cluster: DocumentedCluster, stores: OtherStores): PageScript {
  const { key, secret } = cluster.credentials;
  const { directory } = cluster;
  return {
    page: 'docs/storage.md',
    replace: {
      'AWS_ACCESS_KEY_ID=...': `AWS_ACCESS_KEY_ID=${key}`,
      'AWS_SECRET_ACCESS_KEY=...': `AWS_SECRET_ACCESS_KEY=${secret}`,
      // A different service than in the line above.
      's3://backups/cluster-1/?endpoint=https://minio.example:9000&caFile=/etc/minio-ca.pem': `s3://backups/cluster-2/?endpoint=${cluster.store.endpoint}`,
      'AZURE_STORAGE_KEY=...': `AZURE_STORAGE_KEY=${stores.azureKey}`,
      'azblob://backups/cluster-1/?account=mystorage': stores.azure,
      'gs://backups/cluster-1/?credentialsFile=/etc/gcs.json': stores.google,
      '/mnt/backup/repo': `${directory}/shared-repo`,
    },
    steps: {
      'longshore repository create --repo': {
        after: ({ out, err }) => expect(out + err).not.toBe(''),
      },
    },
  };
}

export function readmePage(cluster: DocumentedCluster, stores: OtherStores): PageScript {
  const { directory } = cluster;
  return {
    page: 'README.md',
    replace: {
      '/backup/repo': `${directory}/backup/readme`,
      ' /data': ` ${directory}/data`,
      ' /restored': ` ${directory}/readme-restored`,
      '/dev/vg0/data': `${directory}/device`,
      // There is no database.
      'pg_dump app': 'printf app',
      'https://minio.example:9000': cluster.store.endpoint,
      'azblob://backups/cluster-1/?account=mystorage': stores.azure,
      'gs://backups/cluster-1/': stores.google,
    },
    steps: {
      'npm ci && npm run demo ': {
        after: ({ out }) => expect(out).toContain('every byte'),
      },
      'longshore backup create first': {
        // The backup of the previous page is found in the bucket again.
        before: () => removeBackups(cluster, 'first'),
      },
      'longshore browse first': { after: ({ out }) => expect(out).toBe('127.0.0.1 shop\n') },
      'export LONGSHORE_PASSWORD': {
        before: () => {
          writeData(cluster);
          fs.mkdirSync(join(directory, 'backup'), { recursive: true });
          fs.writeFileSync(join(directory, 'device'), Buffer.alloc(1 << 20, 1));
        },
      },
      'bin/longshore snapshot restore': {
        after: () =>
          expect(fs.readFileSync(join(directory, 'readme-restored/etc/hosts'), 'utf8')).toContain(
            'shop',
          ),
      },
      'bin/longshore repository connect --repo s3': {
        before: () => makeProdRepository(cluster),
      },
    },
  };
}
