import type { Logger } from '../../base/index.ts';
import type { PluginId } from './registry.ts';
import type { RestartableProcess } from './restartable-process.ts';
import type { PluginProcess } from './plugin-process.ts';

interface Held {
  readonly owner: RestartableProcess;
  readonly process: PluginProcess;
}

/**
 * Since its last question. An operation is asked about every few seconds until it is over or its
 * itemOperationTimeout, which may be days, ends it with a cancel: this one is of nobody any more.
 * Our choice.
 */
const KEPT_MS_MAX = 24 * 3_600_000;

/**
 * Which process began which operation. Some plugins know their operations in memory only, and
 * Velero ends the processes of a backup before its operations are over. Here a process lives on
 * until its operations are over, and whoever asks about one reaches it.
 */
export class Operations {
  readonly #logger: Logger;
  readonly #keptMsMax: number;
  readonly #held = new Map<string, Held>();
  readonly #kept = new Map<RestartableProcess, NodeJS.Timeout>();
  readonly #stopping = new Set<Promise<void>>();

  constructor(logger: Logger, keptMsMax = KEPT_MS_MAX) {
    this.#logger = logger;
    this.#keptMsMax = keptMsMax;
  }

  begun(plugin: PluginId, id: string, owner: RestartableProcess, process: PluginProcess): void {
    this.#held.set(keyOf(plugin, id), { owner, process });
    // With the process goes what it knew.
    void process.ended.then(() => {
      if (this.#held.get(keyOf(plugin, id))?.process === process) this.over(plugin, id);
    });
  }

  /** The process that began it, while it runs. It is kept for longer by that. */
  processOf(plugin: PluginId, id: string): PluginProcess | undefined {
    const held = this.#held.get(keyOf(plugin, id));
    if (held?.process.isGone !== false) return undefined;
    this.#kept.get(held.owner)?.refresh();
    return held.process;
  }

  over(plugin: PluginId, id: string): void {
    const held = this.#held.get(keyOf(plugin, id));
    if (!held) return;
    this.#held.delete(keyOf(plugin, id));
    if (this.#kept.has(held.owner) && !this.#isNeeded(held.owner)) this.#end(held.owner);
  }

  /** Takes a process over from its manager if it has operations that are not over. */
  keep(owner: RestartableProcess): boolean {
    if (!this.#isNeeded(owner)) return false;
    owner.logger = this.#logger;
    const { command } = owner;
    const late = setTimeout(() => {
      this.#logger.warn(
        { command },
        'nobody has asked about operations of this plugin for a day; it is ended',
      );
      this.#end(owner);
    }, this.#keptMsMax);
    this.#kept.set(owner, late.unref());
    return true;
  }

  async close(): Promise<void> {
    for (const owner of [...this.#kept.keys()]) this.#end(owner);
    await Promise.all(this.#stopping);
  }

  #isNeeded(owner: RestartableProcess): boolean {
    for (const held of this.#held.values()) {
      if (held.owner === owner && !held.process.isGone) return true;
    }
    return false;
  }

  #end(owner: RestartableProcess): void {
    clearTimeout(this.#kept.get(owner));
    this.#kept.delete(owner);
    for (const [key, held] of this.#held) if (held.owner === owner) this.#held.delete(key);
    const stopped = owner.stop().finally(() => this.#stopping.delete(stopped));
    this.#stopping.add(stopped);
  }
}

const keyOf = ({ kind, name }: PluginId, id: string): string => `${kind} ${name} ${id}`;
