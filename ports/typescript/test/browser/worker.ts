import { readFile } from "./reading.js";

addEventListener("message", async ({ data }) => {
  try {
    postMessage({ told: await readFile(data) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
});
