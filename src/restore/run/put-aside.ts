import { setTimeout as sleep } from 'node:timers/promises';
import type { KubeObject } from '../../kube/index.ts';
import type { ItemFile, StartedRestoreOperation } from './contract.ts';

/** Work done for an item before it was refused. The retry does not repeat this work. */
export interface PreparedItem {
  /** The object as sent. */
  readonly object: KubeObject;
  readonly operations: StartedRestoreOperation[];
  readonly isInPlace: boolean;
  readonly isModified: boolean;
  readonly isClean: boolean;
}

/** An item that was refused because an extension of the API server does not work yet. */
export interface AsideItem {
  readonly file: ItemFile;
  readonly mustInclude: boolean;
  /** The reason for the wait, in the words of the API server. */
  readonly why: string;
  /** False if this restore cannot bring the missing extension. One more try is enough then. */
  readonly isHopeful: boolean;
  /** False: it was put aside because another one of its group was refused. */
  readonly isTried: boolean;
  /** The restore counts the item already. */
  readonly isBegun: boolean;
  /** Undefined: it was not begun, or there is too much to keep. Its actions run again then. */
  readonly prepared?: PreparedItem | undefined;
}

export interface LastPassOptions {
  /** Returns when the item is over, or was put aside again. */
  readonly retry: (item: AsideItem) => Promise<void>;
  /** Says that an item could not be made. */
  readonly giveUp: (item: AsideItem, seconds: number) => Promise<void>;
  /** Velero: `--resource-timeout`. */
  readonly timeoutMs: number;
  /** Between two rounds at first. */
  readonly pollMs: number;
  readonly signal: AbortSignal;
}

const PAUSE_MS_MAX = 15_000;
/** For all prepared objects together. Our choice: tens of thousands are refused at worst. */
const KEPT_BYTES_MAX = 16 << 20;
/** When the time is over, items that were never tried get their try until so many of a group are refused. */
const LAST_REFUSALS_MAX = 3;

/**
 * Items that are tried again after all others: what refuses them, such as a webhook, may be among
 * those. Items of one group are refused by the same extension. Webhooks may take 30 s to fail, so
 * that only one item of a group is tried at a time.
 */
export class PutAside {
  readonly #groups = new Map<string, AsideItem[]>();
  #keptBytes = 0;
  #isLastPass = false;
  #refused: string | undefined;

  get count(): number {
    return [...this.#groups.values()].reduce((sum, { length }) => sum + length, 0);
  }

  /** How many of them were begun. */
  get begunCount(): number {
    return this.#all().filter(({ isBegun }) => isBegun).length;
  }

  /** Why items of a group are put aside without a try; undefined if they are tried. */
  whyClosed(group: string): string | undefined {
    return this.#isLastPass ? undefined : this.#groups.get(group)?.[0]?.why;
  }

  /** `mustKeep`: what was prepared must not be done twice. */
  add(group: string, item: AsideItem, { mustKeep = false } = {}): void {
    const bytes = item.prepared ? Buffer.byteLength(JSON.stringify(item.prepared.object)) : 0;
    const isKept = mustKeep || this.#keptBytes + bytes <= KEPT_BYTES_MAX;
    if (isKept) this.#keptBytes += bytes;
    const kept = isKept ? item : { ...item, prepared: undefined };
    const items = this.#groups.get(group);
    if (items) items.push(kept);
    else this.#groups.set(group, [kept]);
    this.#refused = group;
  }

  /** Tries all of them in rounds, each group in the order of the restore, until the time is over. */
  async lastPass(options: LastPassOptions): Promise<void> {
    const { giveUp, timeoutMs, pollMs, signal } = options;
    this.#isLastPass = true;
    const startMs = performance.now();
    const untilMs = startMs + timeoutMs;
    let pauseMs = pollMs;
    while (this.#groups.size > 0) {
      const isAnyDone = await this.#round(options, untilMs);
      const isHopeful = this.#all().some((item) => item.isHopeful);
      const leftMs = untilMs - performance.now();
      if (!isHopeful || leftMs <= 0) break;
      pauseMs = isAnyDone ? pollMs : Math.min(PAUSE_MS_MAX, pauseMs * 1.5);
      await sleep(Math.min(pauseMs, leftMs), undefined, { signal });
    }
    await this.#tryUntried(options);
    const seconds = Math.round((performance.now() - startMs) / 1000);
    for (const item of this.#all()) {
      signal.throwIfAborted();
      await giveUp(item, seconds);
    }
    this.#groups.clear();
  }

  #all(): AsideItem[] {
    return [...this.#groups.values()].flat();
  }

  async #tryUntried({ retry, signal }: LastPassOptions): Promise<void> {
    for (const [group, items] of [...this.#groups]) {
      let refusals = 0;
      for (const item of items.filter(({ isTried }) => !isTried)) {
        signal.throwIfAborted();
        if (refusals >= LAST_REFUSALS_MAX) break;
        items.splice(items.indexOf(item), 1);
        this.#forgetKept(item);
        this.#refused = undefined;
        await retry(item);
        if (this.#refused === group) refusals++;
      }
    }
  }

  /** Whether an item came to its end. */
  async #round({ retry, signal }: LastPassOptions, untilMs: number): Promise<boolean> {
    let isAnyDone = false;
    for (const [group, items] of [...this.#groups]) {
      // Later rounds begin with other items: what refuses one of them may not be asked about all.
      for (let left = items.length; left > 0; left--) {
        signal.throwIfAborted();
        if (performance.now() >= untilMs) return isAnyDone;
        const item = items.shift();
        if (!item) break;
        this.#forgetKept(item);
        this.#refused = undefined;
        await retry(item);
        if (this.#refused === group) break;
        isAnyDone = true;
      }
      if (items.length === 0) this.#groups.delete(group);
    }
    return isAnyDone;
  }

  #forgetKept({ prepared }: AsideItem): void {
    if (prepared) this.#keptBytes -= Buffer.byteLength(JSON.stringify(prepared.object));
  }
}
