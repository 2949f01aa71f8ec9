import type { Command } from 'commander';
import { resolve } from 'node:path';
import { lookup } from '../../base/index.ts';
import { absoluteLocation, parseLocation } from '../../blob/index.ts';
import {
  type Connection,
  type Connections,
  environment,
  loadConnections,
  saveConnections,
} from '../../config/index.ts';
import { connectionName, connectionOf } from './connection.ts';
import { openContext } from '../context.ts';
import { JSON_OPTION, verb, type VerbOptions } from '../program.ts';
import { printJson, printLine } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

const DEFAULT_NAME = 'default';

/** `connect`, `disconnect` and `connections`: saved repositories, which need no `--repo`. */
export function addConnectionCommands(group: Command): void {
  const example = `longshore repository connect --repo /backup/repo --password-file /etc/backup-password
  $ longshore repository connect --repo s3://backups/prod/ --name prod --password-command 'pass show backup'
  $ longshore snapshot list --repo @prod`;
  verb(
    group,
    'connect',
    'connect to a repository, so that other commands need no --repo',
    example,
    {
      isNew: true,
    },
  )
    .option(
      '--name <name>',
      `name to store it under; other commands then take @name (default: ${DEFAULT_NAME})`,
    )
    .action(connect);
  group
    .command('disconnect [name]')
    .description('forget a connected repository; the repository itself is not touched')
    .addHelpText(
      'after',
      `
Without a name, this is the repository that commands without --repo use.

Example:
  $ longshore repository disconnect prod`,
    )
    .action(disconnect);
  group
    .command('connections')
    .description('list the connected repositories')
    .option(...JSON_OPTION)
    .addHelpText('after', '\nExample:\n  $ longshore repository connections')
    .action(list);
}

type ConnectOptions = VerbOptions<{ name?: string; connectedAs?: string }>;

async function connect(options: ConnectOptions): Promise<void> {
  const name = plainName(options.name ?? options.connectedAs ?? DEFAULT_NAME);
  await using context = await openContext(options, { cache: false });
  const path = environment.connectionsFile;
  const before = await loadConnections(path);
  const connection = connectionFrom(options, before);
  await saveConnections(path, {
    current: name,
    repositories: { ...before.repositories, [name]: connection },
  });
  printLine(
    `connected to ${context.storage.displayName} as @${name}; commands without --repo now use it`,
  );
  if (connection.passwordFile === undefined && connection.passwordCommand === undefined) {
    printLine(
      'Its password is not stored: commands take it from LONGSHORE_PASSWORD or ask for it, unless you connect with --password-file or --password-command.',
    );
  }
}

/** The connection to save. An existing connection keeps its password source unless typed. */
function connectionFrom(
  { repo, passwordFile, passwordCommand, client, connectedAs }: ConnectOptions,
  { repositories }: Connections,
): Connection {
  const isTyped = (passwordFile ?? passwordCommand) !== undefined;
  const known = connectedAs === undefined ? undefined : lookup(repositories, connectedAs);
  // A password from the environment is for this run only, so the saved source stays.
  const password = isTyped ? { passwordFile, passwordCommand } : { ...known };
  return {
    // Later commands run in other directories.
    repo: absoluteLocation(repo),
    ...(password.passwordFile !== undefined && { passwordFile: resolve(password.passwordFile) }),
    ...(password.passwordCommand !== undefined && { passwordCommand: password.passwordCommand }),
    ...(client !== undefined && { client }),
  };
}

function plainName(name: string): string {
  const plain = connectionName(name.startsWith('@') ? name : `@${name}`);
  if (plain !== undefined) return plain;
  throw new UsageError(`--name "${name}" is not a name: use letters, digits, ".", "_" and "-"`);
}

async function disconnect(given: string | undefined): Promise<void> {
  const path = environment.connectionsFile;
  const { current, repositories } = await loadConnections(path);
  const name = given === undefined ? current : plainName(given);
  if (name === undefined) throw new UsageError('no repository is connected');
  const { repo } = await connectionOf(name);
  const others = Object.entries(repositories).filter(([each]) => each !== name);
  const after: Connections = {
    ...(current !== undefined && current !== name && { current }),
    repositories: Object.fromEntries(others),
  };
  await saveConnections(path, after);
  printLine(`disconnected from ${parseLocation(repo).displayName}, which was @${name}`);
}

async function list(options: { json?: boolean }): Promise<void> {
  const { current, repositories } = await loadConnections(environment.connectionsFile);
  const rows = Object.entries(repositories).map(([name, connection]) => ({
    name,
    isCurrent: name === current,
    ...connection,
  }));
  if (options.json === true) {
    printJson(rows);
    return;
  }
  if (rows.length === 0) printLine('no repository is connected');
  const width = Math.max(...rows.map(({ name }) => name.length));
  for (const { name, isCurrent, repo } of rows) {
    const location = parseLocation(repo).displayName;
    printLine(`${isCurrent ? '*' : ' '} @${name.padEnd(width)}  ${location}`);
  }
}
