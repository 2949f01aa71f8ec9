import { readFileSync } from 'node:fs';
import { runPlugin } from './plugin-server.ts';

/**
 * `velero-plugin-longshore`: the verb `plugin` alone, for a file that Velero's server starts by its path. The actions lie in a comment
 * at its end (src/build.ts), so that a process that only lists them neither parses nor keeps them.
 */
const command = process.argv[1] ?? '';

async function loadActions(): Promise<typeof import('./plugin-actions.ts')> {
  const { brotliDecompressSync } = process.getBuiltinModule('node:zlib');
  const text = readFileSync(command, 'latin1');
  const packed = text.slice(text.lastIndexOf('\n/*') + 3, text.lastIndexOf('*/'));
  const code = brotliDecompressSync(Buffer.from(packed, 'base64'));
  // A file of its own would be started by Velero, too.
  const url = `data:text/javascript;base64,${code.toString('base64')}`;
  return (await import(url)) as typeof import('./plugin-actions.ts');
}

await runPlugin(process.argv.slice(2), loadActions, command);
// Connections to the API server are kept open, and nothing is left to be done.
process.exit();
