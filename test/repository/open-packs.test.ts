import { describe, expect, it } from 'vitest';
import { CodedError, ManualClock, silentLogger } from '../../src/base/index.ts';
import { type BlobId, type BlobStorage, blobId } from '../../src/blob/index.ts';
import { Arena, contentIv, createEncryptor, createHasher, Kernels } from '../../src/codec/index.ts';
import { type ContentId, contentIdOf } from '../../src/repository/index/content-id.ts';
import { ContentManager } from '../../src/repository/content/content-manager.ts';
import type { ContentManagerOptions } from '../../src/repository/content/content-options.ts';
import { arenaPackBuffers, type PackBuffers } from '../../src/repository/content/pack-buffers.ts';
import { memorySource } from '../../src/repository/index/byte-source.ts';
import { IndexBody } from '../../src/repository/index/index-body.ts';
import { noise } from '../support/noise.ts';

/** Numbers of a seed, from 0 up to and without `below`. */
function numbersOf(seed: number): (below: number) => number {
  let state = (seed * 2654435761 + 1) >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

interface Held {
  readonly what: string;
  readonly go: () => void;
  readonly fail: (error: Error) => void;
}

/** What waits for the test to let it go on: requests of the storage, work of the threads. */
class Gates {
  readonly held: Held[] = [];

  async pass(what: string): Promise<void> {
    await new Promise<void>((go, fail) => this.held.push({ what, go, fail }));
  }

  take(at: number): Held {
    return this.held.splice(at, 1)[0] as Held;
  }
}

/** A storage in memory. Each change waits at a gate, before it takes effect. */
class GatedStorage {
  readonly blobs = new Map<BlobId, Uint8Array>();
  readonly #gates: Gates;

  constructor(gates: Gates) {
    this.#gates = gates;
  }

  async putBlob(id: BlobId, pieces: readonly Uint8Array[]): Promise<void> {
    await this.#gates.pass(`put ${id}`);
    this.blobs.set(id, Buffer.concat(pieces));
  }

  async deleteBlob(id: BlobId): Promise<void> {
    await this.#gates.pass(`delete ${id}`);
    this.blobs.delete(id);
  }

  markers(): number {
    return [...this.blobs.keys()].filter((id) => id.startsWith('s')).length;
  }
}

const SEEDS = process.env.SOAK === '1' ? 5000 : 100;
const SEEDS_LIMIT_MS = process.env.SOAK === '1' ? 1_200_000 : 120_000;
const MAX_PACK_BYTES = 16 << 10;
const BUFFER_BYTES = 32 << 10;
const kernels = new Kernels(new Arena(1 << 20).memory, 0);
const codec = {
  hasher: createHasher('BLAKE2B-256-128', noise('secret', 32), kernels),
  encryptor: createEncryptor('AES256-GCM-HMAC-SHA256', noise('master', 32), kernels),
};
const failure = new CodedError('STORAGE_FAILED', 'the storage failed on purpose');

interface World {
  readonly gates: Gates;
  readonly storage: GatedStorage;
  readonly contents: ContentManager;
  readonly buffers: PackBuffers;
  /** Contents that an index names. */
  readonly named: Set<string>;
}

async function openWorld(seed: number, count: number, dataLanes: number): Promise<World> {
  const gates = new Gates();
  const storage = new GatedStorage(gates);
  const named = new Set<string>();
  let blobs = 0;
  const arena = new Arena(count * (BUFFER_BYTES + 65_536));
  const buffers = arenaPackBuffers(arena, count, BUFFER_BYTES);
  const options: ContentManagerOptions = {
    storage: storage as unknown as BlobStorage,
    codec,
    indexStore: {
      listActive: () =>
        Promise.resolve({ blobs: [], watermarkSeconds: 0, superseded: [], lost: [] }),
      write: async (bodies) => {
        for (const body of bodies) {
          const index = new IndexBody(memorySource(body));
          for (let i = 0; i < index.count; i++) {
            const { contentId, packBlobId } = index.entryAt(i);
            // Packs are durable before the index that names them.
            expect(storage.blobs.has(blobId(packBlobId)), packBlobId).toBe(true);
            named.add(contentId);
          }
          await storage.putBlob(blobId(`x${blobs++}`), [body]);
        }
        return [];
      },
    },
    clock: new ManualClock(1_700_000_000_000_000_000n),
    random: (bytes) => noise(`${seed} ${blobs++}`, bytes),
    logger: silentLogger,
    client: { username: 'tester', hostname: 'testhost' },
    indexVersion: 2,
    formatVersion: 3,
    maxPackBytes: MAX_PACK_BYTES,
    replica: new Uint8Array(0),
    putOptions: {},
    packBuffers: buffers,
    dataLanes,
    indexMemoryBytes: 1 << 20,
  };
  return { gates, storage, contents: await ContentManager.open(options), buffers, named };
}

/** Lets all go on that can go on by itself. */
const settle = async (): Promise<void> => {
  for (let i = 0; i < 3; i++) await new Promise((resolve) => setImmediate(resolve));
};

/** Tasks without an end yet, and errors of failed tasks. */
class Begun {
  readonly open = new Set<string>();
  readonly errors: unknown[] = [];
  #count = 0;

  add<T>(what: string, promise: Promise<T>, onDone: (result: T) => void = () => undefined): void {
    const label = `${what} ${this.#count++}`;
    this.open.add(label);
    const done = promise.then(onDone, (error: unknown) => void this.errors.push(error));
    void done.then(() => this.open.delete(label));
  }
}

/** The run of a seed: tasks start, continue or fail in a random order. */
class Run {
  readonly world: World;
  readonly begun = new Begun();
  /** Contents whose append ended well. */
  readonly stored = new Map<ContentId, Uint8Array>();
  readonly #seed: number;
  #contents = 0;

  constructor(seed: number, world: World) {
    this.#seed = seed;
    this.world = world;
  }

  append(bytes: number): void {
    const { contents, gates } = this.world;
    const data = noise(`${this.#seed} content ${this.#contents++}`, bytes);
    const hash = codec.hasher.hash([data]);
    const contentId = contentIdOf('', hash);
    const content = { contentId, originalLength: data.length, timestampSeconds: 1_700_000_000 };
    const room = data.length + codec.encryptor.overheadBytes;
    const appended = contents.session.append('p', [content], room, async (out) => {
      await gates.pass('thread');
      const packedLength = codec.encryptor.seal([data], contentIv(hash), out);
      return [{ packedLength, compressionHeaderId: 0 }];
    });
    this.begun.add('append', appended, () => this.stored.set(contentId, data));
  }

  write(bytes: number): void {
    const data = noise(`${this.#seed} content ${this.#contents++}`, bytes);
    const written = this.world.contents.write(data, { prefix: 'k' });
    this.begun.add('write', written, ({ contentId }) => this.stored.set(contentId, data));
  }

  flush(): void {
    this.begun.add('flush', this.world.contents.flush());
  }

  checkpoint(): void {
    this.begun.add('checkpoint', this.world.contents.checkpoint());
  }

  closePacks(): void {
    this.begun.add('close', this.world.contents.closePacks());
  }

  /** Restores hold buffers of the same pool. */
  restore(): void {
    const { gates, buffers } = this.world;
    const restored = buffers.acquire().then(async (buffer) => {
      await gates.pass('range');
      buffers.release(buffer);
    });
    this.begun.add('restore', restored);
  }

  /** Continues all tasks until none can continue. A task that is still open then waits for ever. */
  async finish(number: (below: number) => number): Promise<void> {
    const { gates } = this.world;
    for (;;) {
      await settle();
      if (gates.held.length === 0) break;
      gates.take(number(gates.held.length)).go();
    }
    expect([...this.begun.open], `seed ${this.#seed}: these wait for ever`).toEqual([]);
  }
}

async function runSeed(seed: number, faultEvery?: number): Promise<Run> {
  const number = numbersOf(seed);
  const buffers = 2 + number(4);
  const run = new Run(seed, await openWorld(seed, buffers, 1 + number(3)));
  const { gates, storage } = run.world;
  for (let steps = 60 + number(120); steps > 0; steps--) {
    const dice = number(20);
    if (dice < 6) run.append(200 + number(7000));
    else if (dice < 9) run.write(200 + number(7000));
    else if (dice === 9) run.flush();
    else if (dice === 10 && number(2) === 0) run.closePacks();
    else if (dice === 10) run.checkpoint();
    else if (dice === 11) run.restore();
    else if (gates.held.length > 0) {
      const held = gates.take(number(gates.held.length));
      if (faultEvery && held.what.startsWith('put') && number(faultEvery) === 0) held.fail(failure);
      else held.go();
    }
    if (number(2) === 0) await settle();
    // A marker each: the session that takes writes, the flushed session, and a session whose
    // deletion is under way.
    expect(storage.markers()).toBeLessThanOrEqual(3);
  }
  run.flush();
  await run.finish(number);
  expect(run.world.buffers.free, `seed ${seed}: buffers were lost`).toBe(buffers);
  return run;
}

describe('appends, flushes, checkpoints and restores at once, with few buffers', () => {
  it(
    'each comes to its end, in any order of what they wait for, and all is stored',
    async () => {
      for (let seed = 0; seed < SEEDS; seed++) {
        const { begun, stored, world } = await runSeed(seed);
        expect(begun.errors).toEqual([]);
        for (const [id, data] of stored) {
          expect(world.named.has(id), `seed ${seed}: ${id}`).toBe(true);
          const { packBlobId, packOffset, packedLength } = world.contents.findOrThrow(id);
          const pack = world.storage.blobs.get(blobId(packBlobId));
          const packed = pack?.subarray(packOffset, packOffset + packedLength) ?? Buffer.alloc(0);
          const opened = world.contents.openPacked(world.contents.findOrThrow(id), packed);
          expect(Buffer.compare(opened, data)).toBe(0);
        }
        expect(world.storage.markers()).toBe(0);
      }
    },
    SEEDS_LIMIT_MS,
  );

  it(
    'after a failed put everything ends with its error, and no buffer is lost',
    async () => {
      let failed = 0;
      for (let seed = 0; seed < SEEDS; seed++) {
        const { begun, world } = await runSeed(seed, 10);
        expect(begun.errors.every((error) => error === failure)).toBe(true);
        if (begun.errors.length === 0) continue;
        failed++;
        // No write succeeds any more: other blobs might refer to the missing content.
        await expect(world.contents.flush()).rejects.toBe(failure);
        await expect(world.contents.checkpoint()).rejects.toBe(failure);
        await expect(world.contents.closePacks()).rejects.toBe(failure);
        await expect(world.contents.write(noise('late', 10), { prefix: 'k' })).rejects.toBe(
          failure,
        );
      }
      expect(failed).toBeGreaterThan(SEEDS / 4);
    },
    SEEDS_LIMIT_MS,
  );
});

it('flushes in a row do not pile up while the storage is slow: the waiting ones become one', async () => {
  const run = new Run(1, await openWorld(1, 3, 1));
  const { gates, storage } = run.world;
  for (let i = 0; i < 100; i++) {
    run.write(100);
    await settle();
    run.flush();
    await settle();
  }
  // The first flush waits for its marker; all others wait for it, as one.
  expect(gates.held.map(({ what }) => what.slice(0, 5))).toEqual(['put s']);
  await run.finish(() => 0);
  expect(run.begun.errors).toEqual([]);
  expect([...storage.blobs.keys()].filter((id) => id.startsWith('x'))).toHaveLength(2);
  expect(run.stored.size).toBe(100);
  for (const id of run.stored.keys()) expect(run.world.named.has(id)).toBe(true);
});

it('a metadata pack stays open while the put of another pack will bring a buffer back', async () => {
  const run = new Run(2, await openWorld(2, 2, 1));
  const { gates, storage } = run.world;
  run.write(100);
  for (let i = 0; i < 10; i++) {
    run.append(7000);
    await settle();
    while (gates.held.length > 0) {
      gates.take(0).go();
      await settle();
    }
  }
  const kinds = [...storage.blobs.keys()].map((id) => id.charAt(0));
  expect(kinds).not.toContain('q');
  expect(kinds.filter((kind) => kind === 'p').length).toBeGreaterThan(2);
});
