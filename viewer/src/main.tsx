import { render } from "preact";
import "./ui/theme.css";
import { words } from "./words";

const place = document.getElementById("app");
if (place) render(<h1>{words.open.heading}</h1>, place);
