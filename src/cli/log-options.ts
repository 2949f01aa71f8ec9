import { Option } from 'commander';

/** Options of servers for logs. */
export const LOG_LEVEL_OPTION: [string, string, string] = [
  '--log-level <level>',
  'least severe messages to log: debug, info, warning or error',
  'info',
];

export const logFormatOption = (): Option =>
  new Option('--log-format <format>', 'format of the log')
    .choices(['text', 'json'])
    .default('text');
