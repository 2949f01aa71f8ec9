import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import { type DocumentedCluster, FILES } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { makeOwnRepository } from './own-repository.ts';

/** The StatefulSet is there, and scaled down. */
const NOT_ALL = 3;

export function inPlacePage(cluster: DocumentedCluster): PageScript {
  const { directory } = cluster;
  const own = makeOwnRepository(cluster, 'in-place');
  const hosts = async (): Promise<string> =>
    join(await cluster.volumeOf('shop', 'data'), 'etc/hosts');
  const spoil = async (): Promise<void> => fs.writeFileSync(await hosts(), 'spoilt\n');
  const isBack = async (): Promise<void> =>
    expect(fs.readFileSync(await hosts(), 'utf8')).toBe(FILES['etc/hosts']);
  const isSpoilt = async (): Promise<void> =>
    expect(fs.readFileSync(await hosts(), 'utf8')).toBe('spoilt\n');
  const running = (): Promise<string> =>
    cluster.sh('kubectl -n shop rollout status statefulset/db --timeout=300s');
  return {
    page: 'docs/restore-in-place.md',
    replace: {
      '--repo /backup/repo': own.flags,
      ' /data': ` ${directory}/data`,
      ' /dev/sdb': ` ${directory}/sdb`,
    },
    steps: {
      'longshore restore in-place nightly-20261126 shop/data --dry-run': {
        before: spoil,
        after: isSpoilt,
      },
      'longshore restore in-place nightly-20261126 shop/data --max-write': { after: isBack },
      'kubectl -n shop scale statefulset/db --replicas=1': { after: running },
      'longshore restore create --from-backup nightly-20261126 --include-namespaces shop --existing-volume-data-policy full --dry-run':
        { before: spoil, after: isSpoilt, code: NOT_ALL },
      'longshore restore create --from-backup nightly-20261126 --include-namespaces shop --existing-volume-data-policy full --delete-extra-files':
        { after: isBack },
      'longshore snapshot restore latest /data --in-place --dry-run': {
        before: async () => {
          await own.create();
          fs.writeFileSync(join(directory, 'sdb'), Buffer.alloc(1 << 20, 1));
          await cluster.sh(`longshore snapshot create ${directory}/data ${own.flags}
            longshore snapshot create ${directory}/sdb --block ${own.flags}`);
          fs.writeFileSync(join(directory, 'data/etc/hosts'), 'spoilt\n');
        },
        after: ({ out }) => expect(out).toContain('hosts'),
      },
      'longshore snapshot restore latest /data --in-place --max-write': {
        after: () =>
          expect(fs.readFileSync(join(directory, 'data/etc/hosts'), 'utf8')).toBe(
            FILES['etc/hosts'],
          ),
      },
      'longshore snapshot restore latest /dev/sdb': {
        before: () => fs.writeFileSync(join(directory, 'sdb'), Buffer.alloc(1 << 20, 2)),
        after: () =>
          expect(fs.readFileSync(join(directory, 'sdb')).equals(Buffer.alloc(1 << 20, 1))).toBe(
            true,
          ),
      },
    },
  };
}
