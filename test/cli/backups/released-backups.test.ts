import { expect, it } from 'vitest';
import { CodedError } from '../../../src/base/index.ts';
import { releaseBackups } from '../../../src/cli/backups/delete.ts';
import type { Session } from '../../../src/cli/backups/session.ts';
import type { KubeObject } from '../../../src/kube/index.ts';

const SCHEDULE = { name: 'daily', uid: 'of-daily' };
const owner = (uid: string) => ({ apiVersion: 'v1', kind: 'X', name: uid, uid });

/** Backups of one schedule; `refusals`: writes that come too late. */
function cluster(refusals: number, code = 'KUBE_CONFLICT') {
  const backups = ['a', 'b'].map((name) => ({
    metadata: {
      name,
      uid: name,
      resourceVersion: '1',
      ownerReferences: [owner('of-daily'), owner('other')],
    },
  }));
  let left = refusals;
  const client = {
    collect: (_kind: unknown, options: object, take: (backup: KubeObject) => unknown[]) => {
      expect(options).toMatchObject({ labelSelector: 'velero.io/schedule-name=daily' });
      return Promise.resolve((backups as unknown as KubeObject[]).flatMap(take));
    },
    patch: (_kind: unknown, ref: { name: string }, body: { metadata: object }) => {
      if (left-- > 0) return Promise.reject(new CodedError(code, 'no'));
      const found = backups.find(({ metadata }) => metadata.name === ref.name);
      expect(body.metadata).toMatchObject({ uid: ref.name, resourceVersion: '1' });
      Object.assign(found?.metadata ?? {}, body.metadata);
      return Promise.resolve();
    },
  };
  const signal = new AbortController().signal;
  const session = { client, namespace: 'velero', signal } as unknown as Session;
  return { backups, session };
}

it('backups of a schedule belong to it no more, and to others as before', async () => {
  const { backups, session } = cluster(0);
  expect(await releaseBackups(SCHEDULE, session)).toBe(2);
  for (const { metadata } of backups) expect(metadata.ownerReferences).toEqual([owner('other')]);
  expect(await releaseBackups(SCHEDULE, session)).toBe(0);
});

it('one that was written meanwhile is released by the next look', async () => {
  const { backups, session } = cluster(3);
  expect(await releaseBackups(SCHEDULE, session)).toBe(2);
  for (const { metadata } of backups) expect(metadata.ownerReferences).toEqual([owner('other')]);
});

it('those that change all the time, or may not be written, are an error', async () => {
  await expect(releaseBackups(SCHEDULE, cluster(Infinity).session)).rejects.toMatchObject({
    code: 'BUSY_BACKUPS',
  });
  const forbidden = cluster(Infinity, 'KUBE_FORBIDDEN').session;
  await expect(releaseBackups(SCHEDULE, forbidden)).rejects.toMatchObject({
    code: 'KUBE_FORBIDDEN',
  });
});
