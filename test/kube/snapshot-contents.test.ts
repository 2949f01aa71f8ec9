import { describe, expect, it } from 'vitest';
import { CodedError } from '../../src/base/index.ts';
import {
  type KubeClient,
  untilHandleTold,
  VOLUME_SNAPSHOT_CONTENTS,
  type VolumeSnapshotContent,
} from '../../src/kube/index.ts';

const CONTENT = {
  metadata: { name: 'c', uid: 'u' },
  spec: { source: { snapshotHandle: 'h' } },
} as VolumeSnapshotContent;
const withStatus = (status: VolumeSnapshotContent['status']): VolumeSnapshotContent => ({
  ...CONTENT,
  ...(status && { status }),
});

class Server {
  readonly writes: unknown[] = [];
  readonly #found: VolumeSnapshotContent | undefined;
  readonly #refusals: Readonly<Record<string, string>>;

  /** `refusals`: codes by name of a call. */
  constructor(
    found: VolumeSnapshotContent | undefined,
    refusals: Readonly<Record<string, string>> = {},
  ) {
    this.#found = found;
    this.#refusals = refusals;
  }

  #answer<T>(call: string, value: T): Promise<T> {
    const code = this.#refusals[call];
    return code === undefined
      ? Promise.resolve(value)
      : Promise.reject(new CodedError(code, `${call} is refused`, { retry: 'never' }));
  }

  readonly client = {
    listPage: () =>
      this.#answer('listPage', {
        items: this.#found ? [this.#found] : [],
        resourceVersion: '1',
      }),
    // The watch has no further events.
    async *watch(_: unknown, { signal }: { readonly signal: AbortSignal }) {
      await new Promise((resolve) => {
        signal.addEventListener('abort', resolve);
      });
      yield* [];
    },
    patch: (...[resource, ref, patch, options]: Parameters<KubeClient['patch']>) => {
      expect(resource).toBe(VOLUME_SNAPSHOT_CONTENTS);
      this.writes.push({ ref, patch, subresource: options?.subresource });
      return this.#answer('patch', {});
    },
  } as unknown as KubeClient;
}

const TOLD_HERE = {
  ref: { name: 'c' },
  patch: { metadata: { uid: 'u' }, status: { snapshotHandle: 'h' } },
  subresource: 'status',
};

describe('the handle of a content', () => {
  const told = async (server: Server, content = CONTENT): Promise<unknown[]> => {
    await untilHandleTold(server.client, content, { atMostMs: 20 });
    return server.writes;
  };

  it.each([
    ['the sidecar has told it', withStatus({ snapshotHandle: 'h' })],
    ['the content is gone', undefined],
    ['there is another content of its name', { ...CONTENT, metadata: { name: 'c', uid: 'new' } }],
  ] as const)('is not written where %s', async (_what, found) => {
    expect(await told(new Server(found as VolumeSnapshotContent | undefined))).toEqual([]);
  });

  it('is not asked for where it is known already, or the driver has not cut the snapshot', async () => {
    const away = new Server(undefined, { listPage: 'KUBE_FORBIDDEN' });
    expect(await told(away, withStatus({ snapshotHandle: 'h' }))).toEqual([]);
    const cut = { ...CONTENT, spec: { ...CONTENT.spec, source: { volumeHandle: 'v' } } };
    expect(await told(away, cut)).toEqual([]);
  });

  it('is written where the sidecar says nothing, and where it says that it cannot', async () => {
    expect(await told(new Server(CONTENT))).toEqual([TOLD_HERE]);
    const failed = new Server(withStatus({ error: { message: 'no such snapshot' } }));
    await untilHandleTold(failed.client, CONTENT);
    expect(failed.writes).toEqual([TOLD_HERE]);
  });

  it('is needed no more where the content goes meanwhile', async () => {
    const going = new Server(CONTENT, { patch: 'KUBE_NOT_FOUND' });
    expect(await told(going)).toEqual([TOLD_HERE]);
  });

  it.each(['listPage', 'patch'])('is not known where the API server refuses: %s', async (call) => {
    const refusing = new Server(CONTENT, { [call]: 'KUBE_FORBIDDEN' });
    await expect(told(refusing)).rejects.toMatchObject({ code: 'KUBE_FORBIDDEN' });
  });
});
