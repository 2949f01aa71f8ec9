import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import { deletePod } from '../../src/exposer/volumes.ts';
import type { KubeClient, KubeObject, Pod, WatchEvent } from '../../src/kube/index.ts';

const owner = { metadata: { name: 'up', namespace: 'velero', uid: 'u-1' } } as KubeObject;
const ref = { namespace: 'velero', name: 'up' };

/**
 * A pod whose node lets it go some time after it was asked to; only force takes it away where it
 * never does.
 */
function nodeThat(endsAfterMs: number): { client: KubeClient; graces: (number | undefined)[] } {
  let pod: Pod | undefined = {
    metadata: { ...ref, uid: 'p-1', ownerReferences: [{ uid: 'u-1' }] },
    spec: { containers: [], nodeName: 'n' },
  } as unknown as Pod;
  const graces: (number | undefined)[] = [];
  const gone = Promise.withResolvers<undefined>();
  const end = (): void => {
    pod = undefined;
    gone.resolve(undefined);
  };
  const client = {
    find: () => Promise.resolve(pod),
    listPage: () => Promise.resolve({ items: pod ? [pod] : [], resourceVersion: '1' }),
    async *watch(
      _kind: unknown,
      { signal }: { signal: AbortSignal },
    ): AsyncGenerator<WatchEvent<Pod>> {
      const last = pod;
      const aborted = new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          reject(new CodedError('CANCELED', 'aborted'));
        });
      });
      await Promise.race([gone.promise, aborted]);
      if (last) yield { type: 'DELETED', object: last };
    },
    delete: (
      _kind: unknown,
      _ref: unknown,
      { gracePeriodSeconds }: { gracePeriodSeconds?: number },
    ) => {
      const wasThere = pod !== undefined;
      graces.push(gracePeriodSeconds);
      if (gracePeriodSeconds === 0) end();
      else if (endsAfterMs !== Infinity) setTimeout(end, endsAfterMs);
      return Promise.resolve(wasThere);
    },
  };
  return { client: client as unknown as KubeClient, graces };
}

describe('a hosting pod that is deleted', () => {
  it('is gone once its node says that its process has ended', async () => {
    const { client, graces } = nodeThat(50);
    const startMs = performance.now();
    await deletePod(client, ref, owner);
    expect(performance.now() - startMs).toBeGreaterThan(40);
    expect(graces).toEqual([1]);
    expect(await client.find({} as never, ref)).toBeUndefined();
  });

  it('is gone without that where its node never says so', async () => {
    const { client, graces } = nodeThat(Infinity);
    await deletePod(client, ref, owner, { timeoutMs: 100 });
    expect(graces).toEqual([1, 0]);
  });
});
