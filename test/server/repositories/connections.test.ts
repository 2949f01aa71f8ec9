import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { Secret, silentLogger } from '../../../src/base/index.ts';
import { type BlobStorage, openStorage } from '../../../src/blob/index.ts';
import { ForwardingStorage } from '../../../src/blob/wrappers/forwarding.ts';
import { type BackupRepository, type KubeObject, type Resource } from '../../../src/kube/index.ts';
import { createFormat } from '../../../src/repository/index.ts';
import { CONNECTED } from '../../../src/server/repositories/connection-annotation.ts';
import { Connections } from '../../../src/server/repositories/connection.ts';
import { HangingAttempts } from '../../../src/server/repositories/hanging-attempts.ts';
import { HOLD } from '../../../src/server/repositories/password-change/repository-lock.ts';
import { RepositoryWriter } from '../../../src/server/repositories/repository-writer.ts';
import { MemoryStorage } from '../../support/memory-storage.ts';
import { DEFAULT_FORMAT } from '../../support/repositories.ts';

const NAMESPACE = 'velero';
const PASSWORD = 'static-passw0rd';
const LOCATION = {
  apiVersion: 'velero.io/v1',
  kind: 'BackupStorageLocation',
  metadata: { name: 'default', namespace: NAMESPACE },
  spec: { provider: 'velero.io/fs', config: { fspath: '/buckets/first' } },
} as unknown as KubeObject;

function deferred(): { readonly promise: Promise<unknown>; readonly resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise((done) => {
    resolve = () => {
      done(undefined);
    };
  });
  return { promise, resolve };
}

/** Every read hangs until the test continues it. */
class HangingStorage extends ForwardingStorage {
  readonly #hanging = deferred();
  readonly #closed = deferred();
  puts = 0;

  /** Resolves when its user has closed it. */
  async wakeUp(): Promise<void> {
    this.#hanging.resolve();
    await this.#closed.promise;
  }

  override close(): Promise<void> {
    this.#closed.resolve();
    return super.close();
  }

  override async getBlob(...parameters: Parameters<BlobStorage['getBlob']>): Promise<Uint8Array> {
    await this.#hanging.promise;
    return super.getBlob(...parameters);
  }

  override putBlob(...parameters: Parameters<BlobStorage['putBlob']>): Promise<void> {
    this.puts++;
    return super.putBlob(...parameters);
  }
}

/** A repository in the API server, and the leaderships that manage it, one after the other. */
class World {
  repository: BackupRepository;
  password = PASSWORD;
  isChangingPassword = false;
  storage: BlobStorage;
  location = LOCATION;
  readonly hanging = new HangingAttempts();
  readonly written: (string | undefined)[] = [];

  constructor(storage: BlobStorage, status: object, annotations: Record<string, string> = {}) {
    this.storage = storage;
    this.repository = {
      metadata: { name: 'app-default-kopia', namespace: NAMESPACE, uid: 'u1', annotations },
      spec: {
        volumeNamespace: 'app',
        backupStorageLocation: 'default',
        repositoryType: 'kopia',
        maintenanceFrequency: '1h',
      },
      status,
    } as never;
  }

  get phase(): string {
    return this.repository.status?.phase ?? '';
  }

  lead(options: { prepareMs?: number; isLeading?: () => boolean } = {}): Leadership {
    return new Leadership(this, options);
  }
}

class Leadership {
  readonly #abort = new AbortController();
  readonly #writer: RepositoryWriter;
  readonly connections: Connections;
  wakes = 0;
  readonly #world: World;

  constructor(world: World, { prepareMs }: { prepareMs?: number }) {
    this.#world = world;
    const answer = ({ kind }: Resource<KubeObject>): Promise<unknown> =>
      Promise.resolve(
        kind === 'Secret'
          ? {
              data: {
                'repository-password': Buffer.from(world.password).toString('base64'),
                ...(world.isChangingPassword && { 'longshore-next-password': 'eA==' }),
              },
            }
          : world.location,
      );
    const client = {
      clock: { nowNs: () => BigInt(Date.now()) * 1_000_000n },
      get: answer,
      find: answer,
      replace: (_: unknown, draft: BackupRepository): Promise<BackupRepository> => {
        world.repository = draft;
        world.written.push(draft.status?.phase);
        return Promise.resolve(draft);
      },
    };
    this.#writer = new RepositoryWriter({
      client: client as never,
      events: { record: () => undefined } as never,
      signal: this.#abort.signal,
      // The process leads, in this leadership and in the next.
      assertLeading: () => undefined,
    });
    this.connections = new Connections({
      logger: silentLogger,
      namespace: NAMESPACE,
      directory: '/nowhere',
      hanging: world.hanging,
      openStorage: () => Promise.resolve(world.storage),
      defaultCredentials: () => undefined,
      frequency: '1h',
      configMap: undefined,
      wake: () => this.wakes++,
      ...(prepareMs !== undefined && { prepareMs }),
    });
    this.connections.notePassword('v1');
  }

  async look(key = 'k'): Promise<number | undefined> {
    const { repository, location } = this.#world;
    const seen = await this.connections.reconcile(key, repository, location, this.#writer);
    return seen.requeueAfterMs;
  }

  /** Waits until an attempt has ended and was written to the CR. */
  async settle(key = 'k'): Promise<void> {
    const before = this.wakes;
    await this.look(key);
    await expect.poll(() => this.wakes, { timeout: 10_000, interval: 5 }).toBeGreaterThan(before);
    await this.look(key);
  }

  end(): void {
    this.#abort.abort(new Error('lost'));
  }
}

async function made(password = PASSWORD): Promise<MemoryStorage> {
  const storage = new MemoryStorage();
  await createFormat(storage, new Secret(password), DEFAULT_FORMAT);
  return storage;
}

describe('a preparation that hangs', () => {
  it('is given up after a while and said, and is not begun once more beside itself', async () => {
    const storage = new HangingStorage(new MemoryStorage());
    const world = new World(storage, { phase: 'New' });
    const leadership = world.lead({ prepareMs: 50 });
    await leadership.settle();
    expect(world.phase).toBe('NotReady');
    expect(world.repository.status?.message).toMatch(
      /took longer than 0 s: its storage does not answer/,
    );
    // Its slot is free for others. Its own next attempt waits until the first has ended.
    expect(await leadership.look()).toBeGreaterThan(1000);
    await storage.wakeUp();
    expect(storage.puts).toBe(0);
  });

  it('through a leadership does not keep the next from preparing, and writes nothing when it wakes up', async () => {
    const hangs = new HangingStorage(new MemoryStorage());
    const world = new World(hangs, { phase: 'New' });
    const first = world.lead();
    await first.look();
    await sleep(20);
    first.end();
    // The same process leads once more.
    const answers = await made();
    world.storage = answers;
    const second = world.lead();
    await second.settle();
    expect(world.phase).toBe('Ready');
    await hangs.wakeUp();
    expect(hangs.puts).toBe(0);
    expect(world.written).toEqual(['Ready']);
  });

  it('does not keep the repository from being prepared at another place', async () => {
    const hangs = new HangingStorage(new MemoryStorage());
    const world = new World(hangs, { phase: 'New' });
    const leadership = world.lead({ prepareMs: 50 });
    await leadership.settle();
    expect(world.phase).toBe('NotReady');
    world.storage = await made();
    const spec = { provider: 'velero.io/fs', config: { fspath: '/buckets/second' } };
    world.location = { ...LOCATION, spec } as KubeObject;
    await leadership.settle();
    expect(world.phase).toBe('Ready');
    await hangs.wakeUp();
    expect(hangs.puts).toBe(0);
  });

  it('keeps no more than two threads, however often this process leads, and the next one is told why', async () => {
    const storages = [0, 1].map(() => new HangingStorage(new MemoryStorage()));
    const world = new World(new MemoryStorage(), { phase: 'New' });
    for (const storage of storages) {
      world.storage = storage;
      const leadership = world.lead();
      await leadership.look();
      await sleep(20);
      leadership.end();
    }
    world.storage = await made();
    const third = world.lead();
    await third.settle();
    expect(world.phase).toBe('NotReady');
    expect(world.repository.status?.message).toMatch(
      /2 repositories at location velero\/default hang .* no other is begun there before/,
    );
    await storages[0]?.wakeUp();
    await sleep(20);
    // After the pause between two attempts. A new leadership has no pause.
    const fourth = world.lead();
    await fourth.settle();
    expect(world.phase).toBe('Ready');
    await storages[1]?.wakeUp();
  });
});

describe('a Secret that was written', () => {
  const ready = { phase: 'Ready', lastMaintenanceTime: '2026-05-01T12:00:00Z' };

  async function connected(storage: BlobStorage): Promise<World> {
    const world = new World(storage, { phase: 'New' });
    await world.lead().settle();
    expect(world.phase).toBe('Ready');
    world.written.length = 0;
    return world;
  }

  it('leaves a repository Ready that it opens', async () => {
    const world = await connected(await made());
    const before = world.repository.metadata.annotations?.[CONNECTED];
    const leadership = world.lead();
    leadership.connections.notePassword('v2');
    await leadership.settle();
    expect(world.written).toEqual(['Ready']);
    expect(world.repository.metadata.annotations?.[CONNECTED]).not.toBe(before);
  });

  it('makes a repository NotReady that it does not open', async () => {
    const world = await connected(await made());
    world.password = 'another';
    const leadership = world.lead();
    leadership.connections.notePassword('v2');
    await leadership.settle();
    expect(world.phase).toBe('NotReady');
    expect(world.repository.status?.message).toMatch(/wrong password/);
  });

  it('says nothing about a repository whose storage is away just now', async () => {
    const world = await connected(await made());
    world.storage = await openStorage('file:///nowhere/at/all').catch(
      () =>
        new (class extends ForwardingStorage {
          override getBlob(): Promise<Uint8Array> {
            return Promise.reject(new Error('away'));
          }
        })(new MemoryStorage()),
    );
    const leadership = world.lead();
    leadership.connections.notePassword('v2');
    await leadership.look();
    await expect.poll(() => leadership.wakes, { interval: 5 }).toBe(1);
    expect(await leadership.look()).toBeGreaterThan(1000);
    expect(world.phase).toBe('Ready');
    expect(world.written).toEqual([]);
  });

  it('is not used to create one while all passwords are being changed', async () => {
    const storage = new MemoryStorage();
    const world = new World(storage, { phase: 'New' });
    world.isChangingPassword = true;
    const leadership = world.lead();
    await leadership.look();
    await expect.poll(() => leadership.wakes, { interval: 5 }).toBe(1);
    await expect(leadership.look()).rejects.toThrow('is being changed');
    expect(storage.blobs.size).toBe(0);
    expect(world.phase).toBe('New');
  });

  it('is of no interest for a repository that is held', async () => {
    const world = new World(await made(), { ...ready, phase: 'New' }, { [HOLD]: 'Ready' });
    const leadership = world.lead();
    expect(await leadership.look()).toBe(60_000);
    expect(leadership.wakes).toBe(0);
    expect(world.written).toEqual([]);
  });
});
