import type { Weather } from '../simulated-client.ts';
import type { Random, VirtualTime } from '../virtual-time.ts';
import type { SharedBucket } from './bucket.ts';
import type { ServerProcess } from './server-process.ts';

const MINUTE_MS = 60_000;
export const CALM: Weather = { refused: 0, lost: 0, cut: 0, latencyMs: 100, watchLagMs: 100 };

export interface TroubleOptions {
  readonly time: VirtualTime;
  readonly random: Random;
  readonly bucket: SharedBucket;
  /** When the trouble begins. Default: at once. */
  readonly fromMs?: number;
  /** No trouble at all. */
  readonly isCalm: boolean;
  /** The API server also throttles requests. */
  readonly isThrottling?: boolean;
  readonly servers: () => readonly ServerProcess[];
  /** Counts an event. */
  readonly note: (what: string) => void;
}

/** Trouble for servers, the API server and the bucket, for a limited time. */
export class Trouble {
  weather: Weather = CALM;
  /** The offset of the API server's clock. */
  apiOffsetMs = 0;
  readonly #options: TroubleOptions;
  readonly #untilMs: number;
  readonly #rough: Weather;
  #kills: number;
  #fuse: number;
  #apiAwayUntilMs = 0;
  #bucketAwayUntilMs = 0;

  constructor(options: TroubleOptions) {
    const { random, isCalm, fromMs = 0 } = options;
    this.#options = options;
    this.#untilMs = isCalm ? 0 : fromMs + random.between(3, 40) * MINUTE_MS;
    this.#kills = isCalm ? 0 : 5 + random.below(35);
    this.#rough = {
      refused: random.chance(0.5) ? random.between(0, 0.05) : 0,
      lost: random.chance(0.5) ? random.between(0, 0.05) : 0,
      cut: random.between(0, 0.1),
      latencyMs: random.chance(0.4) ? 1500 : 100,
      watchLagMs: random.chance(0.4) ? 5000 : 100,
      ...(options.isThrottling === true && {
        throttled: random.chance(0.5) ? random.between(0, 0.05) : 0,
      }),
    };
    this.#fuse = this.#nextFuse();
  }

  get isOver(): boolean {
    return this.#options.time.nowMs >= this.#untilMs;
  }

  /** Whether a server dies at this turn. */
  kills(): boolean {
    if (this.#kills <= 0 || --this.#fuse > 0) return false;
    this.#fuse = this.#nextFuse();
    this.#kills--;
    return true;
  }

  /**
   * Turns until the next kill. With few turns, some beginnings are never passed. With many turns,
   * some ends are reached. A try has a hundred turns before its first item.
   */
  #nextFuse(): number {
    const { random } = this.#options;
    const most = [15, 150, 300, 300][random.below(4)] ?? 15;
    return 1 + random.below(most);
  }

  /** Called now and then. */
  act(): void {
    if (!this.isOver) {
      this.#disturb();
    } else if (this.weather !== CALM) {
      this.end();
    }
  }

  /** Ends all trouble. */
  end(): void {
    this.weather = CALM;
    this.#options.bucket.isAway = false;
    for (const server of this.#options.servers()) server.heal();
  }

  #disturb(): void {
    const { time, random, bucket, servers, note } = this.#options;
    const { nowMs } = time;
    const isAway = nowMs < this.#apiAwayUntilMs;
    this.weather = isAway ? { ...this.#rough, refused: 1 } : this.#rough;
    bucket.isAway = nowMs < this.#bucketAwayUntilMs;
    if (random.chance(0.002)) {
      note('API server away');
      this.#apiAwayUntilMs = nowMs + random.between(0.1, 8) * MINUTE_MS;
    }
    if (random.chance(0.003)) {
      note('bucket away');
      this.#bucketAwayUntilMs = nowMs + random.between(0.1, 8) * MINUTE_MS;
    }
    if (random.chance(0.002)) {
      note('clock of the API server');
      this.apiOffsetMs = random.between(-30, 30) * MINUTE_MS;
    }
    for (const server of servers()) {
      const isLeading = server.isLeading ? 1 : 0.2;
      if (random.chance(0.002 * isLeading)) {
        note('servers cut off');
        server.cut(random.between(1, 120) * 1000);
      }
      if (random.chance(0.004 * isLeading)) {
        note('servers frozen');
        server.freeze(random.between(1, 120) * 1000);
      }
      if (random.chance(0.002)) {
        note('clocks of servers');
        server.wallOffsetMs = random.between(-60, 60) * MINUTE_MS;
      }
    }
  }
}
