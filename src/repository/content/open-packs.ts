import { asError, assert, Semaphore } from '../../base/index.ts';
import type { BufferTaker, PackBuffers } from './pack-buffers.ts';
import type { Pack } from './pack.ts';

/** File data, or metadata: contents with a prefix. */
export type PackKind = 'p' | 'q';

/** Maintenance rewrites packs that are filled less than this (maintenance/rewrite-packs.ts). */
const LONG_ENOUGH_SHARE = 0.6;
/**
 * Kopia lets a pack grow by the chunk that fills it; fewer and longer packs are fewer requests, and
 * more memory.
 */
const LENGTH_SHARE_MAX = 1.2;
/** A new pack has room for what is asked for after its preamble and the replica of the format. */
const PREAMBLE_BYTES_MAX = 4096;

/** Whose packs they are: a session. */
export interface PackOwner {
  newPack(kind: PackKind, buffer: Uint8Array): Pack;
  /** Whether more contents of this kind will come soon; otherwise the pack is closed. */
  wants(kind: PackKind): boolean;
  /** Makes a pack durable. It is not appended to any more. */
  put(pack: Pack): Promise<void>;
  /** The pack will not be put: something failed. */
  drop(pack: Pack, failure: unknown): void;
}

export interface OpenPacksOptions {
  readonly buffers: PackBuffers;
  /** Packs of file data that are filled at once. */
  readonly dataLanes: number;
  readonly maxPackBytes: number;
}

interface OpenPack {
  readonly owner: PackOwner;
  readonly kind: PackKind;
  readonly pack: Pack;
}

/** An append that waits: for a buffer, or for a pack of its session that is given back. */
interface Waiting {
  readonly owner: PackOwner;
  readonly kind: PackKind;
  readonly roomBytes: number;
  readonly take: (open: OpenPack) => void;
  readonly taker: BufferTaker;
  readonly reject: (error: Error) => void;
}

/**
 * The packs that are being filled, of all sessions of one repository. Waits go one way only, so
 * that none goes in a circle: an append waits for a lane, then for a pack, which needs a buffer.
 * Buffers come back from appends that run, which wait for threads only, and from puts, which wait
 * for the storage only. Idle packs hold buffers too; when more wait for a buffer than puts will
 * bring back, idle packs are put, whoever they belong to.
 */
export class OpenPacks {
  readonly #options: OpenPacksOptions;
  /**
   * Appends of each kind that hold a pack or wait for one. More would spread contents over short
   * packs.
   */
  readonly #lanes: Record<PackKind, Semaphore>;
  /** Packs that nobody writes to right now. */
  #idle: OpenPack[] = [];
  readonly #waiting = new Set<Waiting>();
  /** Puts under way: each brings a buffer back. */
  #puts = 0;
  #failure: Error | undefined;

  constructor(options: OpenPacksOptions) {
    this.#options = options;
    this.#lanes = { p: new Semaphore(options.dataLanes), q: new Semaphore(1) };
    options.buffers.onShortage = () => {
      this.#relieve();
    };
  }

  /** Why nothing can be appended any more. */
  get failure(): Error | undefined {
    return this.#failure;
  }

  /**
   * Calls `fill` with a pack of this owner and kind that has room. Throws the first failure of any
   * put.
   */
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

  /** Puts the idle packs of an owner that are closed or of no more use. */
  closeIdle(owner: PackOwner): void {
    for (const open of this.#idle.filter((each) => each.owner === owner)) {
      const isFull = open.pack.isFull(this.#options.maxPackBytes);
      if (isFull || !owner.wants(open.kind)) this.#close(open);
    }
  }

  /**
   * Ends all waits with this error, and all later appends. Packs that are not being put are given
   * up.
   */
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

  /**
   * An idle pack with room, the fullest first, so that few are short at the end; else a new one.
   */
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

  /**
   * While more wait for a buffer than puts will bring back, an idle pack is put: the longest first.
   */
  #relieve(): void {
    while (this.#options.buffers.waiting > this.#puts && this.#idle.length > 0) {
      this.#close(this.#idle.reduce((a, b) => (b.pack.length > a.pack.length ? b : a)));
    }
  }

  /**
   * Whether to append here: a pack that is long enough is rather closed than made much too long.
   */
  #fits(pack: Pack, roomBytes: number): boolean {
    const { maxPackBytes } = this.#options;
    const isLongEnough = pack.length >= maxPackBytes * LONG_ENOUGH_SHARE;
    const isTooLong = pack.length + roomBytes > maxPackBytes * LENGTH_SHARE_MAX;
    return pack.room >= roomBytes && !(isLongEnough && isTooLong);
  }

  /** Starts the put; its buffer is free again when the blob is durable. */
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
