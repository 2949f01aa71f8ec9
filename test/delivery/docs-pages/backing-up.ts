import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { type DocumentedCluster, FILES } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { endUploads, removeCopies } from './prepared.ts';

const YES = ['[y/N]', 'y\n'] as const;

async function isCopied(cluster: DocumentedCluster): Promise<void> {
  const volume = await cluster.volumeOf('shop-copy', 'data');
  for (const [path, text] of Object.entries(FILES)) {
    expect(fs.readFileSync(join(volume, path), 'utf8')).toBe(text);
  }
}

export function backupsPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/backups.md',
    steps: {
      'longshore backup get': {
        after: ({ out }) => expect(out).toMatch(/^before-upgrade +Completed /m),
      },
      'longshore restore create': { after: () => isCopied(cluster) },
      'longshore restore describe': {
        after: ({ out }) => expect(out).toMatch(/Phase: +Completed/),
      },
      'longshore schedule pause': {
        after: async () =>
          expect(await cluster.sh('longshore schedule get nightly -o yaml')).toContain(
            'paused: true',
          ),
      },
      'longshore backup create --from-schedule': {
        after: ({ out, err }) => expect(out + err).toMatch(/backup nightly-\d{14} is requested/),
      },
      'longshore backup cancel': {
        after: ({ out, err }) => expect(out + err).toMatch(/by-mistake has ended/),
      },
      'longshore backup delete': {
        answer: YES,
        after: async () =>
          expect(await cluster.sh('longshore backup get')).not.toContain('by-mistake'),
      },
    },
  };
}

export function restorePage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/restore.md',
    replace: {
      '/restored': join(cluster.directory, 'restored'),
      SNAPSHOT: () => cluster.noted,
    },
    steps: {
      'longshore restore create --from-backup': {
        before: async () => {
          await removeCopies(cluster);
          await cluster.sh(
            'kubectl delete namespace shop && longshore restore delete --all --confirm',
          );
        },
        after: async () =>
          expect(await cluster.sh('kubectl -n shop get pvc -o name')).toContain('data'),
      },
      'longshore restore create shop-copy': { after: () => isCopied(cluster) },
      'longshore restore logs': {
        before: () =>
          cluster.sh(
            `kubectl -n velero wait restores.velero.io/shop-copy --for=jsonpath='{.status.phase}'=Completed --timeout=300s`,
          ),
        after: ({ out }) => expect(out).toContain('shop-copy'),
      },
      'longshore snapshot list': {
        after: async () => {
          const listed = await cluster.sh('longshore snapshot list --repo @shop --all -o json');
          cluster.noted = fileSnapshot(listed);
        },
      },
      'longshore snapshot restore': {
        after: () => {
          for (const [path, text] of Object.entries(FILES)) {
            expect(fs.readFileSync(join(cluster.directory, 'restored', path), 'utf8')).toBe(text);
          }
        },
      },
    },
  };
}

/** The newest one of the volume of files. */
function fileSnapshot(listed: string): string {
  const all = JSON.parse(listed) as { id: string; source: { path: string } }[];
  return all.findLast(({ source }) => source.path.endsWith('/shop/data'))?.id ?? '';
}

export function singleFilePage(cluster: DocumentedCluster): PageScript {
  const own = (name: string): string => fs.readFileSync(join(cluster.directory, name), 'utf8');
  return {
    page: 'docs/single-file.md',
    replace: { '/tmp/restored': join(cluster.directory, 'of-tar') },
    steps: {
      'longshore browse nightly-20261126 shop/data /etc': {
        after: ({ out }) => expect(out).toContain('hosts'),
      },
      'longshore browse nightly-20261126 shop/data /etc/hosts': {
        after: () => expect(own('hosts')).toBe(FILES['etc/hosts']),
      },
      'longshore browse nightly-20261126 shop/data /var/lib': {
        after: () => {
          const found = fs.globSync('**/orders.txt', { cwd: join(cluster.directory, 'of-tar') });
          expect(found).toHaveLength(1);
        },
      },
      'longshore browse nightly-20261126 shop/disk /etc/hosts': {
        before: () => fs.rmSync(join(cluster.directory, 'hosts')),
        after: () => expect(own('hosts')).toBe(FILES['etc/hosts']),
      },
      'longshore browse nightly-20261126 shop/disk --cat': {
        after: () => expect(fs.statSync(join(cluster.directory, 'disk.img')).size).toBe(8 << 20),
      },
    },
  };
}

export function dataMoversPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/data-movers.md',
    steps: {
      'velero backup create': {
        after: () => endUploads(cluster, 'with-tar'),
      },
    },
  };
}
