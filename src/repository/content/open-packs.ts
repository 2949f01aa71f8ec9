import { asError, assert, Semaphore } from '../../base/index.ts';
import type { BufferTaker, PackBuffers } from './pack-buffers.ts';
import type { Pack } from './pack.ts';

/** `p` is file data. `q` is metadata: contents with a prefix. */
export type PackKind = 'p' | 'q';

/** Maintenance rewrites packs filled below this share (maintenance/rewrite-packs.ts). */
const LONG_ENOUGH_SHARE = 0.6;
/** Kopia grows a pack by its last chunk. Longer packs need fewer requests and more memory. */
const LENGTH_SHARE_MAX = 1.2;
/** The most bytes that a preamble and the format replica take in a new pack. */
const PREAMBLE_BYTES_MAX = 4096;

/** The session that owns packs. */
export interface PackOwner {
  newPack(kind: PackKind, buffer: Uint8Array): Pack;
  /** Whether more contents of this kind are expected. If not, the pack is closed. */
  wants(kind: PackKind): boolean;
  /** Makes a pack durable. The pack takes no more contents. */
  put(pack: Pack): Promise<void>;
  /** The pack will not be put because of a failure. */
  drop(pack: Pack, failure: unknown): void;
}

export interface OpenPacksOptions {
  readonly buffers: PackBuffers;
  /** Packs of file data that are filled in parallel. */
  readonly dataLanes: number;
  readonly maxPackBytes: number;
}

interface OpenPack {
  readonly owner: PackOwner;
  readonly kind: PackKind;
  readonly pack: Pack;
}

/** An append that waits for a buffer, or for a pack of its session. */
interface Waiting {
  readonly owner: PackOwner;
  readonly kind: PackKind;
  readonly roomBytes: number;
  readonly take: (open: OpenPack) => void;
  readonly taker: BufferTaker;
  readonly reject: (error: Error) => void;
}

/**
 * The packs being filled, for all sessions of one repository. Waits cannot form a circle:
 * - An append waits for a lane, then for a pack, which needs a buffer.
 * - Running appends and puts return buffers. Appends wait only for threads, and puts only for the
 *   storage.
 * - Idle packs hold buffers too. If more appends wait than puts will return buffers, idle packs of
 *   any owner are put.
 */
export class OpenPacks {
  readonly #options: OpenPacksOptions;
  /** Limits appends of a kind that hold or await a pack, because more would leave short packs. */
  readonly #lanes: Record<PackKind, Semaphore>;
  /** Packs without a writer. */
  #idle: OpenPack[] = [];
  readonly #waiting = new Set<Waiting>();
  /** Running puts. Each returns a buffer. */
  #puts = 0;
  #failure: Error | undefined;

  constructor(options: OpenPacksOptions) {
    this.#options = options;
    this.#lanes = { p: new Semaphore(options.dataLanes), q: new Semaphore(1) };
    options.buffers.onShortage = () => {
      this.#relieve();
    };
  }

  /** The reason why appends fail. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /** Calls `fill` with an owner's pack that has room. Throws the first failure of any put. */
  async append(
    owner: PackOwner,
    kind: PackKind,
    roomBytes: number,
    fill: (pack: Pack) => Promise<void>,
  ): Promise<void> {
    await this.#lanes[kind].acquire();
    try {
      const open = await this.#take(owner, kind, roomBytes);
      try {
        await fill(open.pack);
      } finally {
        this.#giveBack(open);
      }
    } finally {
      this.#lanes[kind].release();
    }
  }

  /** Puts the owner's idle packs that are full or no longer needed. */
  closeIdle(owner: PackOwner): void {
    for (const open of this.#idle.filter((each) => each.owner === owner)) {
      const isFull = open.pack.isFull(this.#options.maxPackBytes);
      if (isFull || !owner.wants(open.kind)) this.#close(open);
    }
  }

  /** Fails all waiting and later appends with this error. Drops packs that are not being put. */
  fail(cause: unknown): void {
    if (this.#failure) return;
    const failure = asError(cause);
    this.#failure = failure;
    for (const { taker, reject } of this.#waiting) {
      this.#options.buffers.withdraw(taker);
      reject(failure);
    }
    this.#waiting.clear();
    for (const open of this.#idle.splice(0)) this.#drop(open, failure);
  }

  /** An idle pack with room, fullest first, to leave few short packs. Otherwise a new pack. */
  #take(owner: PackOwner, kind: PackKind, roomBytes: number): OpenPack | Promise<OpenPack> {
    if (this.#failure) throw this.#failure;
    const { buffers } = this.#options;
    assert(roomBytes + PREAMBLE_BYTES_MAX < buffers.bufferBytes, 'contents too long for a pack');
    const own = this.#idle
      .filter((open) => open.owner === owner && open.kind === kind)
      .sort((a, b) => b.pack.length - a.pack.length);
    const fitting = own.find(({ pack }) => this.#fits(pack, roomBytes));
    if (fitting) {
      this.#idle.splice(this.#idle.indexOf(fitting), 1);
      return fitting;
    }
    for (const full of own) this.#close(full);
    const buffer = buffers.tryAcquire();
    if (buffer) return { owner, kind, pack: owner.newPack(kind, buffer) };
    return new Promise((resolve, reject) => {
      const take = (open: OpenPack): void => {
        this.#waiting.delete(waiting);
        resolve(open);
      };
      const taker = (granted: Uint8Array): void => {
        take({ owner, kind, pack: owner.newPack(kind, granted) });
      };
      const waiting = { owner, kind, roomBytes, take, taker, reject };
      this.#waiting.add(waiting);
      buffers.enqueue(taker);
    });
  }

  #giveBack(open: OpenPack): void {
    const { owner, kind, pack } = open;
    if (this.#failure) {
      this.#drop(open, this.#failure);
      return;
    }
    if (pack.isFull(this.#options.maxPackBytes)) {
      this.#close(open);
      return;
    }
    for (const waiting of this.#waiting) {
      if (waiting.owner !== owner || waiting.kind !== kind) continue;
      if (!this.#fits(pack, waiting.roomBytes)) continue;
      this.#options.buffers.withdraw(waiting.taker);
      waiting.take(open);
      return;
    }
    this.#idle.push(open);
    if (owner.wants(kind)) this.#relieve();
    else this.#close(open);
  }

  /** Puts the longest idle packs while more appends wait than puts will return buffers. */
  #relieve(): void {
    while (this.#options.buffers.waiting > this.#puts && this.#idle.length > 0) {
      this.#close(this.#idle.reduce((a, b) => (b.pack.length > a.pack.length ? b : a)));
    }
  }

  /** Whether to append here. A long enough pack is closed instead of getting too long. */
  #fits(pack: Pack, roomBytes: number): boolean {
    const { maxPackBytes } = this.#options;
    const isLongEnough = pack.length >= maxPackBytes * LONG_ENOUGH_SHARE;
    const isTooLong = pack.length + roomBytes > maxPackBytes * LENGTH_SHARE_MAX;
    return pack.room >= roomBytes && !(isLongEnough && isTooLong);
  }

  /** Starts the put. The buffer is free when the put settles. */
  #close(open: OpenPack): void {
    const at = this.#idle.indexOf(open);
    if (at >= 0) this.#idle.splice(at, 1);
    const { owner, pack } = open;
    this.#puts++;
    const settled = (): void => {
      this.#puts--;
      this.#options.buffers.release(pack.buffer);
      this.#relieve();
    };
    owner.put(pack).then(settled, (error: unknown) => {
      this.fail(error);
      settled();
    });
  }

  #drop({ owner, pack }: OpenPack, failure: Error): void {
    owner.drop(pack, failure);
    this.#options.buffers.release(pack.buffer);
  }
}
