/** A plugin process with actions that misbehave on demand; `plugin-process.test.ts` starts it. */
import { writeSync } from 'node:fs';
import { CodedError } from '../../../src/base/index.ts';
import type { Plugin } from '../../../src/plugin/contract.ts';
// Not by the folder's index: it starts in half the time without the actions.
import type { HostEnvironment } from '../../../src/plugin/protocol/handshake.ts';
import { createHostLogger } from '../../../src/plugin/protocol/host-log.ts';
import { PluginServer } from '../../../src/plugin/protocol/serve.ts';

const logger = createHostLogger('info', (line) => writeSync(2, line));

const backupAction: Plugin = {
  kind: 'BackupItemActionV2',
  name: 'test.longshore.io/backup',
  appliesTo: { includedResources: ['persistentvolumeclaims'], selector: 'app=db' },
  open: () =>
    Promise.resolve({
      async execute(item, backup, { signal }) {
        switch (item.metadata.name) {
          case 'refused':
            throw new CodedError('REFUSED', 'the volume was refused: 5 % of ünits');
          case 'bug':
            return (undefined as unknown as { missing: () => never }).missing();
          case 'uncaught':
            setTimeout(() => {
              throw new Error('nobody catches this');
            }, 10);
            return new Promise(() => undefined);
          case 'slow':
            logger.info({ item: 'slow' }, 'execute started');
            await new Promise((resolve) => signal.addEventListener('abort', resolve));
            logger.warn({ item: 'slow' }, 'execute was given up');
            return {};
          case 'untouched':
            return {};
          default: {
            const labels = { ...item.metadata.labels, backup: backup.metadata.name };
            return {
              item: { ...item, metadata: { ...item.metadata, labels } },
              additionalItems: [{ group: '', resource: 'pods', namespace: 'app', name: 'a' }],
              operationId: 'du-1',
              postOperationItems: [
                { group: 'velero.io', resource: 'datauploads', namespace: 'velero', name: 'b' },
              ],
            };
          }
        }
      },
      progress: (operationId) =>
        Promise.resolve({
          completed: operationId === 'done',
          err: '',
          nCompleted: 5_000_000_000_000,
          nTotal: 5_000_000_000_000,
          operationUnits: 'Bytes',
          description: 'Completed',
          started: operationId === 'done' ? '2026-11-24T10:00:00Z' : undefined,
          updated: undefined,
        }),
    }),
};
const restoreAction: Plugin = {
  kind: 'RestoreItemActionV2',
  name: 'test.longshore.io/restore',
  appliesTo: {},
  open: () => Promise.resolve({ execute: () => Promise.resolve({ skipRestore: true }) }),
};
let opened = 0;
const late: Plugin = {
  kind: 'DeleteItemAction',
  name: 'test.longshore.io/late',
  appliesTo: {},
  open: () =>
    ++opened === 1
      ? Promise.reject(new CodedError('AWAY', 'the cluster is away'))
      : Promise.resolve({ execute: () => Promise.resolve() }),
};
const block: Plugin = {
  kind: 'ItemBlockAction',
  name: 'test.longshore.io/block',
  appliesTo: {},
  open: () =>
    Promise.resolve({
      relatedItems: (item) =>
        Promise.resolve([
          { group: '', resource: 'pods', namespace: 'app', name: item.metadata.name },
        ]),
    }),
};

const environment: HostEnvironment = {
  cookie: process.env.VELERO_PLUGIN,
  protocolVersions: process.env.PLUGIN_PROTOCOL_VERSIONS,
  clientCertificate: process.env.PLUGIN_CLIENT_CERT,
  socketDirectory: process.env.PLUGIN_UNIX_SOCKET_DIR,
  multiplex: process.env.PLUGIN_MULTIPLEX_GRPC,
};
const server = await PluginServer.start({
  plugins: [late, block, restoreAction, backupAction],
  command: '/plugins/test-plugin',
  environment,
  logger,
  stdout: { write: (text) => writeSync(1, text) },
  parent: () => process.ppid,
  watchMs: 50,
});
process.on('uncaughtException', (error) => server.panic(error));
await server.ended;
process.exit();
