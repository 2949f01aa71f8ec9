import { define } from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  type EventRecorder,
  type KubeClient,
} from '../../kube/index.ts';

export interface WriterOptions {
  readonly client: KubeClient;
  readonly events: EventRecorder;
  readonly signal: AbortSignal;
  readonly assertLeading: () => void;
}

/** Writes BackupRepositories while this process leads, and only over the version that it read. */
export class RepositoryWriter {
  readonly client: KubeClient;
  readonly events: EventRecorder;
  readonly signal: AbortSignal;
  readonly assertLeading: () => void;

  constructor({ client, events, signal, assertLeading }: WriterOptions) {
    this.client = client;
    this.events = events;
    this.signal = signal;
    this.assertLeading = assertLeading;
  }

  /** Returns the written object. Throws `LEADERSHIP_LOST`, and `KUBE_CONFLICT` if it changed. */
  update(
    repository: BackupRepository,
    change: (draft: BackupRepository) => void,
  ): Promise<BackupRepository> {
    const draft = structuredClone(repository);
    change(draft);
    this.assertLeading();
    return this.client.replace(BACKUP_REPOSITORIES, draft, { signal: this.signal });
  }
}

/** Sets an annotation, or removes it. */
export function annotate(
  { metadata }: BackupRepository,
  key: string,
  value: string | undefined,
): void {
  metadata.annotations ??= {};
  if (value === undefined) Reflect.deleteProperty(metadata.annotations, key);
  else define(metadata.annotations, key, value);
}
