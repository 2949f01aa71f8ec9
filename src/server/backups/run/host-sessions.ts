import type { Logger } from '../../../base/index.ts';
import { type BackupAction, type BlockAction, openObjectActions } from '../../../backup/index.ts';
import { pluginAsker } from '../../../item-operations/index.ts';
import type { PluginHost } from '../../../plugin/index.ts';
import type { Backup, KubeClient, KubeObject } from '../../../kube/index.ts';
import type { DeletionSession, DeletionSessions } from '../../deletion/contract.ts';
import type { ActionSessions } from '../contract.ts';
import { patientClient } from '../../runs/api-outage.ts';

/** Our own actions for plain objects, followed by those of plugins. */
export class HostSessions implements ActionSessions, DeletionSessions {
  readonly #client: KubeClient;
  readonly #host: () => Promise<PluginHost>;
  readonly #logger: Logger;

  /** `host` opens once. Each session waits for it. */
  constructor(client: KubeClient, host: () => Promise<PluginHost>, logger: Logger) {
    this.#client = client;
    this.#host = host;
    this.#logger = logger;
  }

  async open(backup: Backup, logger: Logger): Promise<DeletionSession> {
    const manager = (await this.#host()).manager(logger);
    return {
      loadActions: async (signal) => {
        const own = openObjectActions(
          patientClient(this.#client, { logger: this.#logger, signal }),
        );
        const actions = manager.backupItemActions().map(async (hosted): Promise<BackupAction> => ({
          name: hosted.name,
          appliesTo: await hosted.appliesTo({ signal }),
          execute: (item, about, context) => hosted.action.execute(item, about, context),
        }));
        const blockActions = manager
          .itemBlockActions()
          .map(async (hosted): Promise<BlockAction> => ({
            name: hosted.name,
            appliesTo: await hosted.appliesTo({ signal }),
            relatedItems: (item, about, context) =>
              hosted.action.relatedItems(item, about, context),
          }));
        return {
          actions: [...own.actions, ...(await Promise.all(actions))],
          blockActions: [...own.blockActions, ...(await Promise.all(blockActions))],
        };
      },
      loadDeleteActions: (signal) =>
        Promise.all(
          manager.deleteItemActions().map(async (hosted) => ({
            name: hosted.name,
            appliesTo: await hosted.appliesTo({ signal }),
            execute: (item: KubeObject, about: Backup, context: { readonly signal: AbortSignal }) =>
              hosted.action.execute(item, about, context),
          })),
        ),
      asker: pluginAsker(manager, backup),
      snapshotter: (provider, config) => manager.volumeSnapshotter(provider, config),
      [Symbol.asyncDispose]: () => manager.close(),
    };
  }
}
