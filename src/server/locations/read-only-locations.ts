import { type Nanoseconds, SECOND_NS, Stopwatch } from '../../base/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import { loadLocation } from '../../repository-access/index.ts';

/** How long an answer is cached: each waiting backup asks every ten seconds. Our choice. */
const KEPT_NS = 10n * SECOND_NS;

interface Answer {
  readonly age: Stopwatch;
  readonly isReadOnly: Promise<boolean>;
}

/** Whether a location is read-only. All callers within ten seconds share a request. */
export class ReadOnlyLocations {
  readonly #client: KubeClient;
  readonly #namespace: string;
  readonly #keptNs: Nanoseconds;
  readonly #answers = new Map<string, Answer>();

  constructor(client: KubeClient, namespace: string, keptNs = KEPT_NS) {
    this.#client = client;
    this.#namespace = namespace;
    this.#keptNs = keptNs;
  }

  /**
   * Throws `NO_LOCATION`, `BAD_STORAGE_LOCATION`, errors of the API server. Errors are not cached.
   */
  isReadOnly(name: string, signal: AbortSignal): Promise<boolean> {
    const known = this.#answers.get(name);
    if (known && known.age.elapsedNs < this.#keptNs) return known.isReadOnly;
    const isReadOnly = this.#ask(name, signal);
    const answer = { age: new Stopwatch(this.#client.clock), isReadOnly };
    this.#answers.set(name, answer);
    isReadOnly.catch(() => {
      if (this.#answers.get(name) === answer) this.#answers.delete(name);
    });
    return isReadOnly;
  }

  async #ask(name: string, signal: AbortSignal): Promise<boolean> {
    const query = { client: this.#client, namespace: this.#namespace, signal };
    const { spec } = await loadLocation(name, query);
    return spec.accessMode === 'ReadOnly';
  }
}
