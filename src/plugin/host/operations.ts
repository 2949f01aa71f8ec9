import type { Logger } from '../../base/index.ts';
import type { PluginId } from './registry.ts';
import type { RestartableProcess } from './restartable-process.ts';
import type { PluginProcess } from './plugin-process.ts';

interface Held {
  readonly owner: RestartableProcess;
  readonly process: PluginProcess;
}

/**
 * Time since the last poll after which an operation is abandoned. A server polls each operation
 * every few seconds until it ends. At itemOperationTimeout, which may be days, the server cancels
 * it. Our choice.
 */
const KEPT_MS_MAX = 24 * 3_600_000;

/**
 * Remembers which process began which operation. Some plugins keep their operations only in memory,
 * and Velero ends a backup's processes before its operations end. Here a process lives until its
 * operations end, and polls reach that process.
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
    // When the process ends, its operations are lost.
    void process.ended.then(() => {
      if (this.#held.get(keyOf(plugin, id))?.process === process) this.over(plugin, id);
    });
  }

  /** The running process that began the operation. Each call extends the process's life. */
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

  /** Takes a process over from its manager if it has unfinished operations. */
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
